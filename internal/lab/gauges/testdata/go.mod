module github.com/pgfrontier/worker

go 1.26
