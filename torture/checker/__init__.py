"""The rules of torture-check, one file per family. They know the files of a history and nothing of the library."""
