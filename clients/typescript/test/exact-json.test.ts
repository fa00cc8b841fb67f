import assert from "node:assert/strict";
import { test } from "node:test";
import { parse, stringify } from "../conformance/exact-json.js";

test("integers and floats are told apart, and kept whole", () => {
  const text = '{"a":[1,1.0,-0.0,18446744073709551615,1e+300,0.1,true,null],"\\u00e4\\n":"x\\"y","__proto__":{}}';
  const value = parse(text);
  assert.deepEqual(Object.values(value as object)[0], [1n, 1, -0, 18446744073709551615n, 1e300, 0.1, true, null]);
  assert.equal(stringify(value), text.replace("\\u00e4", "ä"));
});

for (const wrong of ["", "{", "[1,]", '{"a" 1}', "01x", "[1] 2", "{1:2}", "nul"]) {
  test(`${JSON.stringify(wrong)} is no JSON`, () => assert.throws(() => parse(wrong), SyntaxError));
}
