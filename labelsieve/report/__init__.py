"""Report: one self-contained HTML page about runs, or about an audit without a run.

Modules:
    page: build the page and write it.
    words: sentences of the page.
    audit: results of an audit, read from its files.
    charts: training curves, bars and class matrices as data of the page.
    svg: drawings.

The page is made from files alone; nothing here imports torch.
"""

__all__ = ["audit", "charts", "page", "svg", "words"]
