package incarnation

import (
	"strings"

	"github.com/pgfrontier/worker/internal/ident"
)

// Of returns an SQL expression for the incarnation of the server, NULL if there is no token
// yet. token is the table of the token. log and sequence are the qualified and quoted names of
// the events' table and the positions' sequence, empty if unknown. database is an expression
// for the oid of the database. The oid is stored with the token, because dumps copy the table.
func Of(token ident.Table, log, sequence, database string) string {
	file := ``
	if sequence != "" {
		// A partitioned table has no file.
		file = ` || ' ' || pg_relation_filenode(` + ident.Literal(sequence) + `::regclass)::text || ' ' || coalesce(pg_relation_filenode(` + ident.Literal(log) + `::regclass), 0)::text`
	}
	return `(SELECT token::text || ' ' || (date_part('epoch', pg_postmaster_start_time()) * 1000000)::bigint::text` + file + `
	FROM ` + token.SQL() + ` WHERE database = ` + database + `)`
}

// InsertToken returns a statement that inserts token $2, unless there is a token of database $1,
// given by its oid.
func InsertToken(token ident.Table) string {
	return `
INSERT INTO ` + token.SQL() + ` AS t ("only", token, database) VALUES (true, $2::uuid, $1::bigint::oid)
ON CONFLICT ("only") DO UPDATE SET token = excluded.token, database = excluded.database WHERE t.database <> excluded.database`
}

// InsertTokenOnce returns a statement that inserts token $1, unless there is a token of this
// database. In that case it writes nothing.
func InsertTokenOnce(token ident.Table) string {
	const here = `(SELECT oid FROM pg_database WHERE datname = current_database())`
	return `
INSERT INTO ` + token.SQL() + ` AS t ("only", token, database)
SELECT true, $1::uuid, ` + here + ` WHERE NOT EXISTS (SELECT FROM ` + token.SQL() + ` WHERE database = ` + here + `)
ON CONFLICT ("only") DO UPDATE SET token = excluded.token, database = excluded.database WHERE t.database <> excluded.database`
}

// WroteRow returns an SQL condition that is true only if a row was written in the current
// incarnation: after the server's start and after the insert of the token. row is the alias of
// the row. at is the column with the time of the write, which every write of the row must set.
//
// A server that recovers from the death of a backend keeps its start time. So WroteRow
// compares the order of transaction ids as well as the times.
func WroteRow(token ident.Table, row, at string) string {
	return `(` + row + `.` + at + ` > pg_postmaster_start_time() AND EXISTS (
	SELECT FROM ` + token.SQL() + ` AS t
	WHERE t.database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND ` + writtenAfter(row+".xmin", "t.xmin") + `))`
}

// writtenAfter returns an SQL condition that is true only if transaction a is later than
// transaction b. An age is a signed 32-bit number. The age of b may be any number of transactions:
// it is negative from 2^31 on, and begins again at 2^32. The age of a must be below 2^31. Evaluate
// the condition in a transaction of one statement. A later statement may see rows of transactions
// whose ids are above its own. Their age is negative, too.
func writtenAfter(a, b string) string {
	return `(age(` + b + `) < 0 OR age(` + a + `) < age(` + b + `))`
}

// LogRestarted reports whether the log may have been emptied, and its sequence restarted,
// between two incarnations of one server. Both then have other files. A statement that
// rewrites both, such as ALTER TABLE ... SET LOGGED, gives them other files, too.
func LogRestarted(before, after string) bool {
	b, a := strings.Fields(before), strings.Fields(after)
	return len(b) == fields && len(a) == fields && b[0] == a[0] && b[1] == a[1] && b[2] != a[2] && b[3] != a[3]
}

// fields is the number of fields of the name: token, start time, and the files of sequence and
// table.
const fields = 4
