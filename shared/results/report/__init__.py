"""Reports: runs as one HTML file that needs nothing else, made from their results folders alone.

page.py      what stands in a report, and the file
tables.py    its tables
pictures.py  its pictures, also as files of their own
svg.py       a picture within a page
rerun.py     what it takes to get the same bits again
report.html, run.html, report.css   how it looks

The same folders give the same bytes: no clock is read.
"""
