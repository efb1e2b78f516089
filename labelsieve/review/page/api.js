// Requests to the server.
"use strict";

const parameters = new URLSearchParams(location.search);
const token = parameters.get("token");
const runNumber = parameters.get("run") ?? "0"; // of several runs on one page

function address(path) {
  return `${path}${path.includes("?") ? "&" : "?"}token=${token}&run=${runNumber}`;
}

function connectionError(status) {
  return status === 403
    ? "This page belongs to an earlier session. Open the address that labelsieve review printed."
    : "The server does not respond. Start labelsieve review again and open the address that it prints.";
}

// Returns the answer with its HTTP `status`; a refused request has `error`.
async function request(path, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  try {
    const answer = await fetch(address(path), body === undefined ? {} : post);
    if (answer.status === 403) return { status: 403, error: connectionError(403) };
    return { status: answer.status, ...(await answer.json()) };
  } catch {
    return { status: 0, error: connectionError(0) };
  }
}

// Returns a new element with attributes and children; texts are never parsed as HTML.
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && typeof value !== "string") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Returns a name, such as that of a class, which may be in any script.
const named = (text, attributes = {}) => element("bdi", attributes, text);
