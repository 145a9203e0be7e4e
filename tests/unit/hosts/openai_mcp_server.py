"""An MCP server for a test, spoken to over its standard input and output."""

from mcp.server import MCPServer

server = MCPServer("numbers")


@server.tool()
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


if __name__ == "__main__":
    server.run("stdio")
