"""The report as one page of HTML, made of report.json alone."""
