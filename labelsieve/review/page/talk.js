// What the page says to its server, and hears from it.
"use strict";

const token = new URLSearchParams(location.search).get("token");

function address(path) {
  return `${path}${path.includes("?") ? "&" : "?"}token=${token}`;
}

function lost(status) {
  return status === 403
    ? "This page belongs to an earlier start. Open the address that labelsieve review has printed."
    : "The server does not answer. Start labelsieve review again and open the address that it prints.";
}

// The answer as an object; what was refused has `error`, and `status` says how.
async function ask(path, body) {
  const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  try {
    const answer = await fetch(address(path), body === undefined ? {} : post);
    if (answer.status === 403) return { status: 403, error: lost(403) };
    return { status: answer.status, ...(await answer.json()) };
  } catch {
    return { status: 0, error: lost(0) };
  }
}
