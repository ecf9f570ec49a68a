"""Everything that the documentation tells a user to type, run as it stands; the files of deploy/ that it uses."""
