"""The texts of the scripted model: remarks, questions and the sections of the briefing."""

from typing import Final

TASK: Final = "Brief the council on trees for Quay Street"

PLAN: Final = (
    "Search the library",
    "Read what matters",
    "Find what the notes have in common",
    "Ask what counts most",
    "Read the rest, and write the briefing",
    "Have the facts checked",
    "Mail it to the council",
)

NOTHING_READ: Final = "I have read nothing, so there is nothing to sum up."
STOP_PLAN_ITEM: Final = "Sum up what I have, and stop"

HELLO: Final = "Good morning. A briefing on trees for Quay Street: this is how I go about it."
INVITATION: Final = (
    "It takes a few minutes, and you need not wait for the end. Pause me in the middle of a "
    "sentence, ask me something on the side, or send me down another road: I pick up where I "
    "was. I lock the briefing now, so that nobody else edits it meanwhile, and see what we "
    "have on the street itself."
)
OPENING_THOUGHT: Final = (
    "They have ten minutes, and will ask three things: is it needed, will it live, what does "
    "it cost. I should see what the library has before I promise anything."
)

FIRST_NOTES: Final = (
    "quay-street-today",
    "heat-survey",
    "ash-dieback",
    "salt-and-wind",
    "honey-locust",
)
SECOND_NOTES: Final = (
    "london-plane",
    "field-maple",
    "holm-oak",
    "small-leaved-lime",
    "one-in-ten",
    "planting-pits",
    "roots-and-paving",
    "prices",
    "watering",
    "bucket-brigade",
    "traders-letter",
)

NOTE_REMARKS: Final = {
    "quay-street-today": (
        "Fifteen of thirty-four places are empty, and twelve of those lie in one stretch, "
        "between the fish market and the Customs House. That is where the tram stops. So the "
        "question is less how many trees than where. How hot does it get there?"
    ),
    "heat-survey": (
        "Forty-six degrees on the paving in July, against thirty-one under the limes of Mill "
        "Lane. Fifteen degrees, from shade alone. And people over seventy have stopped "
        "coming to town on such days; that sentence belongs in the briefing. Next, what went "
        "wrong with the trees that stood there before."
    ),
    "ash-dieback": (
        "The town planted one kind in long rows in 1961 and lost a street when the row fell "
        "ill. Five ashes are left on the quay and will be felled in two winters. Whatever "
        "comes now must not be able to die of one thing. It must also bear the harbour."
    ),
    "salt-and-wind": (
        "Salt from two sides: spray in autumn, grit in January, and the grit is worse "
        "because it stays in the soil. Honey locust and holm oak bear it, planes mostly, "
        "field maple so-so, limes not at all. That already rules out the tree that everybody "
        "will ask for. There was a trial of honey locust; how did it go?"
    ),
    "honey-locust": (
        "Nine planted, nine alive after seven years of spray and wind. A light, moving "
        "shade, worth nine degrees. The pods are a nuisance in November, which I can live "
        "with. That makes five notes, and I see a pattern."
    ),
    "london-plane": (
        "Keep every plane and plant no more of them: they are more than half of the street "
        "already. So the new trees must be of other kinds. What grows here by itself?"
    ),
    "field-maple": (
        "Native, tough, kind to insects, and eighteen of twenty alive on Ferry Road. "
        "Middling on salt, so the northern side only. I have my second tree. Is there a "
        "third?"
    ),
    "holm-oak": (
        "Salt and wind do nothing to it, but it is dark in January and the dearest on the "
        "list. One at each end as a windbreak, says the note, a full stop and not a "
        "sentence. I like that. I had better read the note on limes before somebody asks."
    ),
    "small-leaved-lime": (
        "Loved, and wrong for the quay: salt in the soil, honeydew on the fish crates. "
        "Somebody will stand up in the meeting and ask for limes, and this is what to say to "
        "them. Now the rule on mixing kinds."
    ),
    "one-in-ten": (
        "At least three kinds on a street of this length, none more than half, and they "
        "should not share a pest. Honey locust, field maple and the old planes pass. Which "
        "leaves the ground that they stand in."
    ),
    "planting-pits": (
        "This one surprises me. A connected trench costs less than single pits, and trees "
        "grow twice as fast in it: one in three dies in a pit, one in forty in a trench, and "
        "that one was hit by a bus. What do the road people say?"
    ),
    "roots-and-paving": (
        "Sixty-one thousand crowns for trips over lifted paving, most of it on this very "
        "street. Highways will pay for the paving if the trench is done to their drawing. "
        "That is an argument that a treasurer understands. Then let me see the prices."
    ),
    "prices": (
        "Trees are the cheap part; the ground is what costs. The council has set aside "
        "30,000 crowns for 2026. I will do the sum when I write. What about the years after?"
    ),
    "watering": (
        "Sixty litres a week for three summers, or a third of them dies. By contract that is "
        "140 crowns a tree and summer, with volunteers 35, and the volunteers lose no more "
        "trees. Are there volunteers on the quay?"
    ),
    "bucket-brigade": (
        "Mr Osei of the bakery would take it on if there were a standpipe: 400 crowns, once. "
        "People water a tree that has their number on it. One letter left, from the traders."
    ),
    "traders-letter": (
        "For trees, against works in July, no limes, and some light please. They even offer "
        "to water. That is all sixteen notes, or near enough."
    ),
}

SECOND_LOOKS: Final = (  # remark, and the query of a search or the name of a note to read again
    (
        "Before I write I want to be sure that I have missed nothing. I search once more.",
        "Quay Street trees heat shade",
    ),
    (
        "The same notes as before. Still, let me try it in other words.",
        "harbour street trees summer",
    ),
    (
        (
            "And again the same ones, in another order. I read the price list once more, now "
            "that I know what the trench is for."
        ),
        "prices",
    ),
    (
        (
            "It says what it said. The letter of the traders as well, in case I have the "
            "months wrong."
        ),
        "traders-letter",
    ),
    (
        (
            "January to Easter, as I had it. Perhaps there is something under the names of "
            "the trees."
        ),
        "honey locust field maple quay",
    ),
    (
        "I have read all of these. One last search, for the cost, to be on the safe side.",
        "cost of trees trench watering",
    ),
)
SECOND_LOOK_THOUGHT: Final = (
    "I am going round in circles. Somebody who watches this would tell me that I have had "
    "enough for a while. But figures matter, and nobody has said anything."
)

ANALYSIS_REMARK: Final = (
    "Before I read on, I let the machine look at all sixteen notes at once, to see which "
    "belong together. This takes a few seconds; it can be stopped like everything else."
)
ANALYSIS_AGAIN_REMARK: Final = (
    "The analysis was stopped midway when you spoke to me. What it had saved belonged to that "
    "call, so I run it again from the first round. “Skip the analysis” would spare us that."
)

EMPHASIS_OPTIONS: Final = {
    "cost": "What it costs",
    "shade": "Shade, and soon",
    "upkeep": "Little work afterwards",
}

QUESTION: Final = (
    "What should the briefing put first? I have enough for all three, but a council "
    "remembers one thing."
)

SUMMARY_NOTES: Final = (  # the notes of a summary, if too many were read to mention all
    "quay-street-today",
    "heat-survey",
    "salt-and-wind",
    "honey-locust",
    "field-maple",
    "planting-pits",
    "prices",
    "watering",
)
HEADINGS: Final = (
    "In short",
    "The street today",
    "The ground",
    "Which trees",
    "What it costs",
    "Recommendation",
)
STREET_SECTION: Final = (
    "Quay Street has 34 planting places, and 15 of them are empty. Twelve of these lie "
    "between the fish market and the Customs House, on the stretch with the tram stop and "
    "the benches. On 14 July 2023 the paving there reached 46 °C; under the limes of Mill "
    "Lane it was 31 °C. More than half of the older people who were asked at the stop no "
    "longer come to town on such afternoons. Five ashes with dieback will be felled by the "
    "end of 2026, and the gap will grow unless something is planted first."
)
GROUND_SECTION: Final = (
    "What kills young trees here is the ground and not the climate. In single pits of one "
    "cubic metre in harbour rubble, one tree in three has died since 2010. In connected "
    "trenches with stone, soil and charcoal it was one in forty. A trench keeps roots away "
    "from the paving, which has cost the town 61,400 crowns in claims within six years, and "
    "highways will carry the paving if it is done to their drawing. The street is closed for "
    "nine days; the traders ask for any time between the middle of January and Easter."
)
TREES_SECTION: Final = (
    "Three kinds, so that the row cannot die of one thing. Honey locust for eight places on "
    "the harbour side: nine out of nine alive in the trial on Customs House Square, "
    "untouched by salt, with a light shade that leaves the shop windows bright. Field maple "
    "for seven places on the northern side, where there is less spray: native, tough, good "
    "for insects. And the eleven old planes stay, every one of them. No limes: they do not "
    "bear the salt, and the fish market has asked for none."
)

WRONG_COST_SECTION: Final = (
    "Eight honey locusts at 310 crowns and seven field maples at 260 come to 4,300. Stakes "
    "and guards for fifteen trees come to 900. A connected trench at 1,510 crowns for each "
    "tree comes to 22,650. Watering by contract for three summers comes to 6,300. Together "
    "that is 34,150 crowns, which is 4,150 more than the council has set aside for 2026."
)
WRONG_ADVICE_SECTION: Final = (
    "Plant eleven of the fifteen now, between the fish market and the Customs House, and the "
    "other four in 2027. Order before the end of October, dig between January and Easter, "
    "and apply for the regional shade grant by 15 January."
)
COST_SECTION: Final = (
    "Eight honey locusts at 310 crowns and seven field maples at 260 come to 4,300. Stakes "
    "and guards for fifteen trees come to 900. A connected trench at 1,150 crowns for each "
    "tree comes to 17,250. Watering by contract for three summers comes to 6,300. Together "
    "that is 28,750 crowns, which leaves 1,250 of the 30,000 that the council has set aside "
    "for 2026."
)
ADVICE_SECTION: Final = (
    "Plant all fifteen in the spring of 2026. Order before the end of October, dig between "
    "January and Easter, and apply for the regional shade grant by 15 January: it may bring "
    "back a fifth. What is left over pays for the standpipe, and with it Mr Osei will find "
    "the people who water."
)

TOP_SECTION_BY_EMPHASIS: Final = {
    "cost": (
        "Fifteen trees, one trench, three summers of water, and a price that the council can "
        "check line by line below. Every crown in it is from the price list of 2025, and "
        "with volunteers the watering falls from 6,300 crowns to 1,575."
    ),
    "shade": (
        "The hottest pavement in town can be nine degrees cooler within seven years, and "
        "fifteen where the planes are kept. Twelve of the fifteen trees go where people "
        "wait, at the tram stop and the benches, and those are dug first."
    ),
    "upkeep": (
        "Plant in a trench, water for three summers, and after that these trees look after "
        "themselves. No leaf that the sweepers would notice, no lifted paving, and a list of "
        "neighbours who have offered to water before anybody asked them."
    ),
    "": (
        "Fifteen trees of two new kinds in one trench, where people wait for the tram. It is "
        "needed, it will live, and below is what it costs."
    ),
}

CLAIMS: Final = (
    "On 14 July 2023 the paving of Quay Street reached 46 °C",
    "Of the 34 planting places on Quay Street 15 are empty or hold a stump",
    "Nine honey locusts were planted on Customs House Square and all nine are alive",
    "A connected trench costs 1,510 crowns for each tree",
    "Watering costs 140 crowns a tree and summer by contract and 35 with volunteers",
)
