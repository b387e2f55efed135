package main

import (
	"bytes"
	"io"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgproto3"
)

// wires counts all statements that go over connections, also the pings of
// database/sql.
type wires struct{ statements atomic.Int64 }

// frontend is for pgconn.Config.BuildFrontend.
func (w *wires) frontend(r io.Reader, out io.Writer) *pgproto3.Frontend {
	f := pgproto3.NewFrontend(r, out)
	f.Trace(w, pgproto3.TracerOptions{SuppressTimestamps: true})
	return f
}

// Write takes the description of one message: who sends it, and what it is.
func (w *wires) Write(message []byte) (int, error) {
	if bytes.HasPrefix(message, []byte("F\tQuery\t")) || bytes.HasPrefix(message, []byte("F\tExecute\t")) {
		w.statements.Add(1)
	}
	return len(message), nil
}
