package incarnation

import (
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
)

// Of is an SQL expression for the incarnation of the server that evaluates it,
// or NULL if nobody has put a token there yet. token is the table of the token;
// log and sequence are the qualified and quoted names of the table of the events
// and of the sequence behind their positions, empty if they are not known.
// database is an expression for the oid of the database, which
// stands beside the token since dumps copy the table.
func Of(token ident.Table, log, sequence, database string) string {
	file := ``
	if sequence != "" {
		// A partitioned table has no file.
		file = ` || ' ' || pg_relation_filenode(` + ident.Literal(sequence) + `::regclass)::text || ' ' || coalesce(pg_relation_filenode(` + ident.Literal(log) + `::regclass), 0)::text`
	}
	return `(SELECT token::text || ' ' || (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint::text` + file + `
	FROM ` + token.SQL() + ` WHERE database = ` + database + `)`
}

// Plant is a statement that puts token $2 into its table unless there is one of
// database $1, given by its oid.
func Plant(token ident.Table) string {
	return `
INSERT INTO ` + token.SQL() + ` AS t ("only", token, database) VALUES (true, $2::uuid, $1::bigint::oid)
ON CONFLICT ("only") DO UPDATE SET token = excluded.token, database = excluded.database WHERE t.database <> excluded.database`
}

// PlantOnce is a statement that puts token $1 into its table unless there is one of
// this database: then it writes nothing.
func PlantOnce(token ident.Table) string {
	const here = `(SELECT oid FROM pg_database WHERE datname = current_database())`
	return `
INSERT INTO ` + token.SQL() + ` AS t ("only", token, database)
SELECT true, $1::uuid, ` + here + ` WHERE NOT EXISTS (SELECT FROM ` + token.SQL() + ` WHERE database = ` + here + `)
ON CONFLICT ("only") DO UPDATE SET token = excluded.token, database = excluded.database WHERE t.database <> excluded.database`
}

// WroteRow is an SQL expression that is true only if a row was written in the
// present incarnation: after the server's start, and after the token was put
// there. row is the row's alias, at the column with the time of writing, which
// every write of the row must set.
//
// A server that recovers from the death of a backend keeps its start time. So
// the order of transaction ids counts beside the times.
func WroteRow(token ident.Table, row, at string) string {
	return `(` + row + `.` + at + ` > pg_postmaster_start_time() AND EXISTS (
	SELECT FROM ` + token.SQL() + ` AS t
	WHERE t.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND ` + writtenAfter(row+".xmin", "t.xmin") + `))`
}

// writtenAfter is true only if transaction a is later than b. An age has 32 bits
// and a sign: that of b, which may be of any age, is negative from 2^31
// transactions on, and begins again at 2^32. That of a must be below 2^31. It
// takes a transaction of one statement: to a later one, what was committed since
// it got its id has a negative age, too.
func writtenAfter(a, b string) string {
	return `(age(` + b + `) < 0 OR age(` + a + `) < age(` + b + `))`
}

// LogRestarted reports whether the log may have been emptied, and its sequence
// restarted, between two incarnations of one server: both have other files. What
// rewrites both, as ALTER TABLE ... SET LOGGED does, gives them other files, too.
func LogRestarted(before, after string) bool {
	b, a := strings.Fields(before), strings.Fields(after)
	return len(b) == fields && len(a) == fields && b[0] == a[0] && b[1] == a[1] && b[2] != a[2] && b[3] != a[3]
}

// fields of the name: token, start time, and the files of sequence and table.
const fields = 4
