package migrations

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pgfrontier/worker/internal/errtext"
	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/rights"
	"github.com/pgfrontier/worker/internal/tables"
)

// Roles names the database roles of a deployment. A name is quoted, so its capital letters are
// kept; an empty name is left out. A role that appears twice gets the privileges of both.
type Roles struct {
	// Writer appends events with package store/postgres, and needs no more. An application that
	// also reads streams must be a Reader, too.
	Writer string
	// Worker runs consumers. Grant the privileges of the consumers' handlers separately.
	Worker string
	// Operator runs all operations of package ops, and calls Check.
	Operator string
	// Reader reads events, and the state of the consumers.
	Reader string
}

// DefaultRoles returns event_writer, event_worker, event_operator and event_reader.
func DefaultRoles() Roles {
	return Roles{Writer: "event_writer", Worker: "event_worker", Operator: "event_operator", Reader: "event_reader"}
}

const grantsHeader = `-- What the database roles may do. ` + madeBy + `--
-- It can be run again. Run it after the tables were made, as their owner, and
-- again after an upgrade that brings new tables. The roles must exist; let the
-- roles that log in be members: CREATE ROLE <role>; GRANT <role> TO <login>.
`

// Grants returns the privileges of the roles as SQL text. The privileges cover the statements
// of each role. They are for whole tables, so that an upgrade may add columns. The text can be
// executed again. The roles must exist.
func Grants(c *Config, r Roles) (string, error) {
	s, err := newSchema(c)
	if err != nil {
		return "", err
	}
	jobs, err := c.jobs()
	if err != nil {
		return "", err
	}
	return s.grantText(grantsHeader, "Roles", []grantee{
		{"Writer", r.Writer, "appends events, and nothing else", s.writerNeeds(), ""},
		{"Worker", r.Worker, "runs consumers, whose handlers need more", s.workerNeeds(),
			"\n-- To see what a transaction of another role does that holds back the log.\n" + grantStats(r.Worker) + ";\n"},
		{"Operator", r.Operator, "does what package ops does", s.operatorNeeds(),
			grantIfThere("To rename a consumer that enqueues jobs, if there are any.", emitterNeeds(jobs), r.Operator)},
		{"Reader", r.Reader, "reads events, and how consumers stand", s.readerNeeds(), ""},
	})
}

// grantStats grants a role the right to see the sessions of other roles. The tables' owner may
// lack the right to grant that. The statement then warns instead of failing, so that a
// transaction of the whole text goes on.
func grantStats(role string) string {
	grant := "GRANT pg_read_all_stats TO " + ident.Quote(role)
	return do("\n\t" + grant + ";\nEXCEPTION WHEN insufficient_privilege THEN\n\tRAISE WARNING '%', " +
		ident.Literal("not granted, which takes a superuser or a role with ADMIN on it: "+grant) + ";\n")
}

// grantee is a role of a deployment.
type grantee struct {
	what, name string // an empty name is left out
	does       string
	needs      []rights.Need
	more       string // statements
}

func (s schema) grantText(header, setting string, roles []grantee) (string, error) {
	var b strings.Builder
	b.WriteString(header)
	for _, role := range roles {
		if role.name == "" {
			continue
		}
		if err := checkRole(role.name); err != nil {
			return "", fmt.Errorf("migrations: %s.%s: %s %w", setting, role.what, errtext.Value(role.name), err)
		}
		fmt.Fprintf(&b, "\n-- %s: %s\n", role.what, role.does)
		for _, statement := range s.grants(role.needs, role.name) {
			b.WriteString(statement + ";\n")
		}
		b.WriteString(role.more)
	}
	return b.String(), nil
}

// checkRole refuses an invalid name of a role. PostgreSQL reads "public" as all roles even
// within quotes.
func checkRole(name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("has %d bytes, PostgreSQL takes at most %d", len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("is no name of a role: it has invalid UTF-8 or control characters")
	case name == "public" || name == "none":
		return errors.New("is not the name of one role: create a role for it")
	}
	return nil
}

// grants returns the GRANT statements for a role: of schemas, of tables, of sequences.
func (s schema) grants(needs []rights.Need, role string) []string {
	var schemas, tables, sequences []string
	privileges := map[string][]string{}
	for _, t := range slices.Concat(s.beside, s.own) {
		for _, n := range needs {
			if n.Table != t.SQL() {
				continue
			}
			schemas = append(schemas, t.Schema)
			switch p := n.Privilege; {
			case n.Serial != "":
				sequences = append(sequences, fmt.Sprintf("GRANT %s ON SEQUENCE %s TO %s", p, ident.Table{Schema: t.Schema, Name: t.sequenceName()}.SQL(), ident.Quote(role)))
			default:
				privileges[n.Table] = append(privileges[n.Table], privilege(n))
			}
		}
		if p := privileges[t.SQL()]; len(p) > 0 {
			tables = append(tables, fmt.Sprintf("GRANT %s ON %s TO %s", strings.Join(p, ", "), t.SQL(), ident.Quote(role)))
		}
	}
	slices.Sort(schemas)
	schemas = slices.Compact(schemas)
	for i, name := range schemas {
		schemas[i] = grantSchema(name, role)
	}
	return slices.Concat(schemas, tables, sequences)
}

// privilege returns a need as GRANT names it.
func privilege(n rights.Need) string {
	if len(n.Columns) == 0 {
		return n.Privilege
	}
	return n.Privilege + " (" + strings.Join(n.Columns, ", ") + ")"
}

// grantIfThere grants a role privileges on tables of another schema, if they exist.
func grantIfThere(comment string, needs []rights.Need, role string) string {
	var b strings.Builder
	b.WriteString("\n-- " + comment + "\n")
	for _, n := range needs {
		b.WriteString(do(fmt.Sprintf(`IF to_regclass(%[1]s) IS NOT NULL THEN
    EXECUTE (SELECT format('GRANT USAGE ON SCHEMA %%s TO %%I', relnamespace::regnamespace, %[2]s) FROM pg_class WHERE oid = to_regclass(%[1]s)); EXECUTE format('GRANT %[3]s ON %%s TO %%I', to_regclass(%[1]s), %[2]s); END IF;`,
			ident.Literal(n.Table), ident.Literal(role), privilege(n))) + ";\n")
	}
	return b.String()
}

// grantSchema lets a role find tables. Tables without a schema were created in the first schema
// of the search path.
func grantSchema(name, role string) string {
	if name != "" {
		return fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s", ident.Quote(name), ident.Quote(role))
	}
	return do(fmt.Sprintf("EXECUTE format('GRANT USAGE ON SCHEMA %%I TO %%I', current_schema(), %s);", ident.Literal(role)))
}

func sequence(t ident.Table, column, privilege string) []rights.Need {
	return []rights.Need{{Table: t.SQL(), Privilege: privilege, Serial: column}}
}

const (
	positionColumn = "global_position"
	idColumn       = "id"
)

func (s schema) writerNeeds() []rights.Need {
	returned := []string{positionColumn, "aggregate_version", "metadata", "created_at"} // read by RETURNING
	return slices.Concat(
		rights.On(s.Events, "INSERT"),
		[]rights.Need{{Table: s.Events.SQL(), Privilege: "SELECT", Columns: returned}},
		sequence(s.Events, positionColumn, "USAGE"),
		rights.On(s.Heads, "SELECT", "INSERT", "UPDATE"))
}

// workerNeeds returns the privileges that Start checks, for whole tables.
func (s schema) workerNeeds() []rights.Need {
	return whole(append(rights.Worker(s.Tables, true, true), rights.Log(s.Events.SQL(), positionColumn, true)...))
}

// whole drops the columns of needs, so that they are for whole tables.
func whole(all []rights.Need) []rights.Need {
	for i := range all {
		all[i].Columns = nil
	}
	return all
}

func (s schema) operatorNeeds() []rights.Need {
	return slices.Concat(
		rights.On(s.Events, "SELECT"), sequence(s.Events, positionColumn, "SELECT"),
		rights.On(s.Checkpoints, "SELECT", "INSERT", "UPDATE", "DELETE"),
		rights.On(s.Assignments, "SELECT", "DELETE"),
		rights.On(s.Nodes, "SELECT"), columns(s.Nodes, "UPDATE", "consumers", "drain_requested_at"),
		rights.On(s.Stopped, "SELECT"),
		rights.On(s.GapSkips, "SELECT", "INSERT", "UPDATE", "DELETE"), sequence(s.GapSkips, idColumn, "USAGE"),
		rights.On(s.DeadLetters, "SELECT", "INSERT", "UPDATE", "DELETE"),
		rights.On(s.Operations, "SELECT", "INSERT"), columns(s.Operations, "UPDATE", "consumer_name"), sequence(s.Operations, idColumn, "USAGE"),
		rights.On(s.Receipts, "SELECT", "INSERT", "UPDATE", "DELETE"),
		rights.On(s.Settled, "SELECT"),
		rights.On(s.record, "SELECT"), // Check reads it
		rights.On(s.Changes, "SELECT", "INSERT", "UPDATE"))
}

// emitterNeeds returns the needs of an operator who renames a consumer that enqueues jobs.
func emitterNeeds(t tables.Jobs) (all []rights.Need) {
	for _, table := range []ident.Table{t.EmittedThrough, t.Emitted} {
		all = append(append(all, rights.On(table, "SELECT")...), columns(table, "UPDATE", "emitter")...)
	}
	return all
}

func columns(t ident.Table, privilege string, columns ...string) []rights.Need {
	return []rights.Need{{Table: t.SQL(), Privilege: privilege, Columns: columns}}
}

func (s schema) readerNeeds() []rights.Need {
	return append(s.readAll(), sequence(s.Events, positionColumn, "SELECT")...)
}

func (s schema) readAll() (all []rights.Need) {
	for _, t := range slices.Concat(s.beside, s.own) {
		all = append(all, rights.On(t.Table, "SELECT")...)
	}
	return all
}
