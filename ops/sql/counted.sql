(SELECT count(*) FROM ({argument} LIMIT {most}) AS counted)
