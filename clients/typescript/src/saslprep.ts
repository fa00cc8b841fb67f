// SASLprep (RFC 4013): one form for passwords that people can't tell apart.

import { CORRECTED, LEFT_TO_RIGHT, NOTHING, PROHIBITED, RIGHT_TO_LEFT, SPACE, UNASSIGNED } from "./stringprep.js";

/** The text that is hashed for a password: its prepared form or, where it has none, the password as it is. */
export function preparedPassword(password: string): string {
  return /^[\x00-\x7f]*$/.test(password) ? password : (prepared(password) ?? password);
}

/** Undefined where the text has characters that SASLprep prohibits, or that Unicode 3.2 does not know. */
function prepared(text: string): string | undefined {
  const mapped = [...text]
    .filter((character) => !NOTHING.test(character))
    .map((character) => (SPACE.test(character) ? " " : (CORRECTED[character] ?? character)))
    .join("");
  // Before all else: a later version's compatible form of a character may have none but those that 3.2 knows.
  if (UNASSIGNED.test(mapped)) return undefined;
  const normal = mapped.normalize("NFKC");
  if (PROHIBITED.test(normal)) return undefined;
  if (RIGHT_TO_LEFT.test(normal)) {
    const characters = [...normal];
    const isBetween = [characters[0]!, characters.at(-1)!].every((character) => RIGHT_TO_LEFT.test(character));
    if (!isBetween || LEFT_TO_RIGHT.test(normal)) return undefined;
  }
  return normal;
}
