"""The verb ``extract``: web archives to documents.

extract      options and report; the form of Feedmill: documents and attribute sets
job          one archive: its outputs and their record; processes
pages        a block of records to rows, by the form of the output
dolma        the form of Dolma's ``warc``: attributes in the documents
linearizers  from HTML to text
"""
