/**
 * Marks that change the text direction, by which a name can seem to have another ending; and control characters and
 * lone surrogates, with which URLs cannot be built.
 */
const TURNING = /[\p{Cs}\u202a-\u202e\u2066-\u2069\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]/gu;
/** Replaces the `TURNING` characters in a text written by others. */
export const honest = (value: string): string => value.replace(TURNING, '\ufffd');
