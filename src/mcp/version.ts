/** The version of @service/mcp, as its package.json has it (a test holds the two together). */
export const MCP_VERSION = '0.1.0';
