/* Text for people. Names come from anybody: they only ever become text nodes, and what cannot be seen
 * (control characters, direction marks, bytes that are not UTF-8) is shown as an escape. */

// Controls, zero-width and direction characters, line separators, non-characters, lone surrogates.
// The stream sends lone bytes as \xNN, with the exact bytes beside them.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;
const SHORT = { '\n': '\\n', '\t': '\\t', '\r': '\\r' };

function escaped(c) {
  const code = c.charCodeAt(0);
  return SHORT[c] || (code < 256 ? '\\x' + code.toString(16).padStart(2, '0') : '\\u' + code.toString(16).padStart(4, '0'));
}

export const plain = text => String(text ?? '').replace(UNSEEN, escaped);

/* Makes an element: el('td.n.soft', 'text' or node, ...). Nothing is ever parsed as HTML. */
export function el(what, ...children) {
  const [tag, ...classes] = what.split('.');
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(' ');
  for (const child of children.flat()) if (child != null && child !== false) node.append(child);
  return node;
}

/* The same in SVG: svg('path', {d: ...}). */
export function svg(tag, attributes, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/* A name as nodes, its escapes marked: a name that contains a backslash and an n is not mistaken for one with a newline. */
export function shown(text) {
  const parts = [];
  let at = 0;
  for (const hit of String(text ?? '').matchAll(UNSEEN)) {
    if (hit.index > at) parts.push(text.slice(at, hit.index));
    parts.push(el('span.esc', escaped(hit[0])));
    at = hit.index + hit[0].length;
  }
  parts.push(String(text ?? '').slice(at));
  return parts;
}

export function span(ms) {
  if (!Number.isFinite(ms) || ms > 3e12) return 'no limit';
  if (ms < 0) ms = 0;
  if (ms < 1) return ms === 0 ? '0 s' : Math.round(ms * 1000) + ' µs';
  if (ms < 100) return (ms < 10 ? ms.toFixed(1) : Math.round(ms)) + ' ms';
  if (ms < 10e3) return (ms / 1000).toFixed(1) + ' s';
  if (ms < 60e3) return Math.round(ms / 1000) + ' s';
  if (ms < 3600e3) return Math.floor(ms / 60e3) + ' min';
  if (ms < 86400e3) return Math.floor(ms / 3600e3) + ' h ' + String(Math.floor(ms / 60e3) % 60).padStart(2, '0');
  return Math.floor(ms / 86400e3) + ' d';
}

export const count = n => Math.round(n).toLocaleString('en');
export const rate = n => (n >= 100 ? count(n) : n >= 10 ? n.toFixed(0) : n > 0 ? n.toFixed(1) : '0');
export const clock = ms => new Date(ms).toLocaleString(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
export const plural = (n, one, many) => count(n) + ' ' + (n === 1 ? one : many);
export const bytes = n => (n < 1024 ? n + ' B' : n < 1048576 ? (n / 1024).toFixed(1) + ' KB' : (n / 1048576).toFixed(1) + ' MB');
/* [what to show first, what beside it]. An owner that the library made up says less than the process. */
const MADE_UP = /^[0-9a-f]{16}[-/]\d+/;
export function names(p) {
  const process = p.host ? plain(p.host) + ':' + p.pid : '';
  return MADE_UP.test(p.owner) && process ? [process, plain(p.owner)] : [plain(p.owner), process];
}
export const who = p => names(p).filter(Boolean).join(' · ');

let silence;
export function say(text) {
  const box = document.getElementById('said');
  box.textContent = text;
  box.classList.add('on');
  clearTimeout(silence);
  silence = setTimeout(() => box.classList.remove('on'), 5000);
}
