-- Returns the lacking columns of the shapes $1.
{shapes}
SELECT fault FROM lacking ORDER BY n
