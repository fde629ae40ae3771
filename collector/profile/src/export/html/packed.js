"use strict";
/* Lists of numbers as the file has them: base64 of variable-length bytes (LEB128), which `packed.rs` writes. */

function unpack(text) {
  const bytes = atob(text);
  let count = 0;
  for (let at = 0; at < bytes.length; at++) if (bytes.charCodeAt(at) < 128) count++;
  const numbers = new Float64Array(count);
  let next = 0, number = 0, scale = 1;
  for (let at = 0; at < bytes.length; at++) {
    const byte = bytes.charCodeAt(at);
    number += (byte & 127) * scale;
    if (byte & 128) { scale *= 128; continue; }
    numbers[next++] = number;
    number = 0;
    scale = 1;
  }
  return numbers;
}

function unpackAscending(text) {
  const numbers = unpack(text);
  for (let at = 1; at < numbers.length; at++) numbers[at] += numbers[at - 1];
  return numbers;
}
