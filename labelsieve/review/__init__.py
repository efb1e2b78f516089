"""Review of suspect labels on a local web page.

Modules:
    suspects: read the gallery, class names and given labels that an audit wrote.
    decisions: the append-only file of decisions, and which of them are in effect.
    state: suspects and decisions of one review, as the page sees them.
    contents: pictures, texts and rows of the samples, from the data of a run.
    evidence: sure examples, nearest neighbours, telling words and unusual columns.
    export: write the reviewed labels, and the command that trains on them.
    imports: read decisions from the exports of other tools.
    server: the HTTP server on 127.0.0.1.
    session: serve the page until Ctrl-C.

Only contents imports torch; the server imports it in the background.
"""

__all__ = ["contents", "decisions", "evidence", "export", "imports", "server", "session", "state", "suspects"]
