"""Reports: runs as one self-contained HTML file, made from their results folders alone.

page.py      the content of a report
tables.py    its tables
figures.py   its pictures, also as separate files
svg.py       a picture within a page
rerun.py     how to reproduce a run bit for bit
report.html, run.html, table.html, report.css   templates and style

The same folders give the same bytes: no clock is read.
"""
