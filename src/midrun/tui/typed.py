"""What somebody typed as an answer, as a value."""

from midrun.codec.strict import parse
from midrun.core.values import Json
from midrun.errors import NotJson


def value_of(text: str) -> Json:
    """Return JSON where it is JSON, and the plain text where it is not."""
    try:
        return parse(text)
    except NotJson:
        return text
