package main

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// statement is what the server was told, and what that cost it.
type statement struct {
	Text  string
	Calls int64
	Plans int64   // how often it was planned
	Plan  float64 // milliseconds of that
	Ms    float64 // in execution
	Rows  int64
	WAL   int64 // bytes
}

// statements are those that cost the server the most since the reset.
func (s *site) statements(ctx context.Context) ([]statement, error) {
	rows, err := s.db.Query(ctx, `
		SELECT query AS text, calls, plans, total_plan_time AS plan, total_exec_time AS ms, rows, wal_bytes::bigint AS wal
		FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
		WHERE d.datname = current_database() AND query NOT LIKE '%pg_stat_statements%' AND query NOT LIKE 'SELECT EXISTS (SELECT FROM%'
		ORDER BY total_exec_time + total_plan_time DESC LIMIT 12`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[statement])
}

// brief is the text on one line, cut.
func (s statement) brief() string {
	text := strings.Join(strings.Fields(s.Text), " ")
	if strings.HasPrefix(text, "-- name:") {
		text = strings.TrimPrefix(text, "-- name: ")
	}
	const most = 90
	if len(text) > most {
		text = text[:most] + " ..."
	}
	return text
}
