"""The verb ``extract``: web archives to documents.

extract      options and report
job          one archive: its outputs, their record and lineage; processes
pages        a block of records to rows, by the form of the output
documents    the form of Feedmill: documents and attribute sets
dolma        the form of Dolma's ``warc``: attributes in the documents
linearizers  from HTML to text
"""
