/** The major version of Node: some libraries have another build for each, whose behaviour differs. */
const NODE_MAJOR = Number(process.versions.node.split('.')[0]);

/** uWebSockets.js's build for Node 24 is newer than the one for Node 20. */
export const HAS_NEWER_LIBRARY = NODE_MAJOR >= 24;
