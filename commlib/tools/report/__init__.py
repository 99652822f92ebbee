"""What every command that measures shares: documents and their schemas, tables, formats, pictures, progress, files."""
