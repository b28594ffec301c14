/* Requests to the API on behalf of the operator. An error is thrown with the sentence that the server gave. */
import { headers } from './stream.js';

export async function call(method, path, body) {
  const response = await fetch(path, {
    method, cache: 'no-store', headers: headers(body ? { 'Content-Type': 'application/json' } : {}),
    body: body ? JSON.stringify(body) : undefined,
  });
  const text = await response.text();
  let answer = {};
  try { answer = JSON.parse(text); } catch { /* a proxy's page */ }
  if (!response.ok) throw Object.assign(new Error(answer.detail || answer.title || 'the server answered ' + response.status), { status: response.status });
  return answer;
}

/* A path of names: exact bytes when the name is not UTF-8. */
const UNSAFE = /[!'()*.~]/g;
export const part = (name, hex) => (hex ? hex.replace(/../g, '%$&') : encodeURIComponent(name).replace(UNSAFE, c => '%' + c.charCodeAt(0).toString(16).toUpperCase()));
