package main

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/spf13/cobra"

	"github.com/pgfrontier/worker/internal/command"
	"github.com/pgfrontier/worker/internal/pgdriver"
	"github.com/pgfrontier/worker/internal/tables"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops"
	"github.com/pgfrontier/worker/store"
)

const (
	defaultTimeout = 30 * time.Second
	defaultLimit   = 50
)

var about = `pgfrontier shows how consumers, workers, the event log and jobs stand, and
changes what operators may change. It needs the database only; workers run on.

The database is named by DATABASE_URL, or by PGHOST, PGSERVICE and the other
variables of libpq. A role with "migrate grants" of the operator is enough, with
pg_read_all_stats to see what the transactions of others do.

Tables with other names are given by --schema, --prefix and --table, or by
PGFRONTIER_TABLES, such as schema=app,events=log.events. The keys are schema,
prefix, ` + command.TableKeys() + `.

Every change wants a --reason, and is recorded with it. One that cannot be
undone shows what it would do, and wants the name typed; where nobody can type,
it wants --yes. --dry-run changes nothing.

Exit status: 0 done; 1 refused, or a check says no; 2 wrong usage, or the
database cannot be used; 3 the answer to a COMMIT was lost: the change was made,
or it was not, and the operation's number is printed.`

// app is one run of the command.
type app struct {
	place
	db *sql.DB

	output  string
	common  store.Names       // schema and prefix
	named   map[string]string // tables
	timeout time.Duration
	change  changeFlags
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use: "pgfrontier", Short: "operate consumers and jobs", Long: about,
		Example: `  pgfrontier status
  pgfrontier consumer totals_v1
  pgfrontier pause totals_v1 --reason "the disk is full"
  pgfrontier doctor`,
		SilenceErrors: true, SilenceUsage: true,
	}
	f := root.PersistentFlags()
	f.SortFlags = false
	f.StringVarP(&a.output, "output", "o", "table", "table or json")
	f.DurationVar(&a.timeout, "timeout", defaultTimeout, "how long one read or change may take")
	f.StringToStringVar(&a.named, "table", nil, "`key=name` of a table that is not named as usual, see pgfrontier -h")
	f.Lookup("table").DefValue = ""
	command.NameFlags(f, &a.common)
	root.AddGroup(&cobra.Group{ID: "look", Title: "Look:"}, &cobra.Group{ID: "change", Title: "Change:"}, &cobra.Group{ID: "more", Title: "More:"})
	add := func(group string, all ...*cobra.Command) {
		for _, c := range all {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("look", a.statusVerb(), a.topVerb(), a.consumerVerb(), a.workersVerb(), a.operationsVerb(), a.gapsVerb(), a.waitVerb(), a.planVerb(), a.compareVerb(), a.proveVerb(), a.doctorVerb(), a.consoleVerb())
	add("change", a.pauseVerb(), a.resumeVerb(), a.skipVerb(), a.resetVerb(), a.replayVerb(), a.replayTypesVerb(), a.partitionVerb(), a.renameVerb(), a.beginVerb(), a.shadowVerb(), a.switchVerb(), a.retireVerb(), a.drainVerb(), a.lettersVerbs(), a.blockedVerb(), a.sequencesVerb())
	add("more", a.jobsVerbs(), a.migrateVerbs(), a.versionVerb())
	root.SetUsageTemplate(strings.NewReplacer(
		"FlagUsages", fmt.Sprintf("FlagUsagesWrapped %d", width),
		`Use "{{.CommandPath}} [command] --help" for more information about a command.`, `{{.CommandPath}} VERB -h shows more.`,
	).Replace(root.UsageTemplate()))
	wrapTexts(root)
	root.SetHelpCommandGroupID("more")
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Short, help.Long, help.Example = "how a verb is used", "Help shows how a verb is used, as -h does.", "  pgfrontier help jobs retry"
		help.Args = func(_ *cobra.Command, verbs []string) error { // else an unknown verb is no error
			c, rest, err := root.Find(verbs)
			if err == nil && len(rest) > 0 {
				err = fmt.Errorf("unknown command %q for %q", rest[0], c.CommandPath())
			}
			return err
		}
	}
	root.SetCompletionCommandGroupID("more")
	return root
}

// wrapTexts breaks the lines of all help.
func wrapTexts(c *cobra.Command) {
	var paragraphs []string
	for _, text := range strings.Split(c.Long, "\n\n") {
		paragraphs = append(paragraphs, wrap(text))
	}
	c.Long = strings.Join(paragraphs, "\n\n")
	for _, sub := range c.Commands() {
		wrapTexts(sub)
	}
}

// group is a verb that has verbs.
func (a *app) group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs}
	g.RunE = func(_ *cobra.Command, args []string) error {
		var names []string
		for _, v := range verbs {
			names = append(names, v.Name())
		}
		if len(args) > 0 {
			return usage("%s has no verb %q: it has %s", use, args[0], strings.Join(names, ", "))
		}
		return usage("say which verb of %s: %s", use, strings.Join(names, ", "))
	}
	g.AddCommand(verbs...)
	return g
}

func (a *app) checkFlags() error {
	switch {
	case a.output != "table" && a.output != "json":
		return usage("-o %q: it is table or json", a.output)
	case a.timeout <= 0:
		return usage("--timeout %v: it is above 0", a.timeout)
	}
	return nil
}

func (a *app) close() {
	if a.db != nil {
		_ = a.db.Close()
	}
}

// bound bounds one read or change.
func (a *app) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, a.timeout)
}

// open opens the database, once. Its errors never show the connection string.
func (a *app) open(ctx context.Context) (*sql.DB, error) {
	if a.db != nil {
		return a.db, nil
	}
	text := a.getenv("DATABASE_URL")
	c, err := pgx.ParseConfig(text)
	if err != nil || misplaced(text, c) {
		return nil, usage("cannot read how to reach the database%s: DATABASE_URL is postgres://user@host:5432/database, and a password in it has %%2F for /, %%40 for @ and %%23 for #; or host=... dbname=...; or unset beside PGHOST, PGDATABASE, PGSERVICE and the like", why(text, err))
	}
	if c.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		c.DefaultQueryExecMode = pgx.QueryExecModeExec // works through a transaction-pooling proxy too
		c.RuntimeParams["DateStyle"] = "ISO"           // whatever the role has: times are sent as text then
	}
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "pgfrontier"
	}
	db := stdlib.OpenDB(*c)
	db.SetMaxOpenConns(4)
	ctx, cancel := a.bound(ctx)
	defer cancel()
	if err := db.PingContext(ctx); err != nil {
		_ = db.Close()
		if pgdriver.SQLState(err) == pgdriver.TooManyConnections {
			return nil, usage("the database takes no further connection: end idle sessions, or raise the limit as a superuser, for whom PostgreSQL reserves connections: %w", err)
		}
		return nil, usage("DATABASE_URL or PGHOST, PGUSER and PGDATABASE: %w", pgdriver.Unanswered(err))
	}
	a.db = db
	return db, nil
}

// misplaced reports whether a password with a /, @ or # that is not escaped has become the
// host or what comes behind it, which errors would show.
func misplaced(text string, c *pgx.ConnConfig) bool {
	if u, err := url.Parse(text); err == nil && u.Scheme != "" && strings.Contains(u.Path+u.Fragment, "@") {
		return true
	}
	hosts := []string{c.Host}
	for _, f := range c.Fallbacks {
		hosts = append(hosts, f.Host)
	}
	return slices.ContainsFunc(hosts, func(h string) bool { // sockets are /directory or @name
		return !strings.HasPrefix(h, "/") && strings.LastIndex(h, "@") > 0
	})
}

// why is what may be said of an error of pgx. It quotes the connection string, and takes
// what it can for the password.
func why(text string, err error) string {
	var file *fs.PathError
	switch {
	case errors.As(err, &file):
		return fmt.Sprintf(" (%v)", file)
	case text == "":
		return fmt.Sprintf(" (%v)", err)
	}
	return ""
}

// operator opens the database for consumers.
func (a *app) operator(ctx context.Context) (*ops.Operator, error) {
	names, err := a.names()
	if err != nil {
		return nil, err
	}
	db, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	o, err := ops.New(db, ops.WithNames(names))
	if err != nil {
		return nil, usage("%w", err)
	}
	return o, nil
}

// jobs opens the database for jobs.
func (a *app) jobs(ctx context.Context) (*ops.Jobs, error) {
	names, err := a.names()
	if err != nil {
		return nil, err
	}
	db, err := a.open(ctx)
	if err != nil {
		return nil, err
	}
	o, err := ops.NewJobs(db, ops.WithNames(names))
	if err != nil {
		return nil, usage("%w", err)
	}
	return o, nil
}

// names returns the names of the tables that flags give, or else the environment.
func (a *app) names() (n store.Names, err error) {
	for _, pair := range strings.FieldsFunc(a.getenv("PGFRONTIER_TABLES"), func(r rune) bool { return r == ',' || r == ' ' }) {
		key, name, _ := strings.Cut(pair, "=")
		if err := command.SetName(&n, key, name); err != nil {
			return n, usage("PGFRONTIER_TABLES: %w", err)
		}
	}
	for key, name := range a.named {
		if err := command.SetName(&n, key, name); err != nil {
			return n, usage("--table: %w", err)
		}
	}
	n.Schema, n.Prefix = cmp.Or(a.common.Schema, n.Schema), cmp.Or(a.common.Prefix, n.Prefix)
	return n, nil
}

// config returns the same names for package migrations.
func (a *app) config() (*migrations.Config, error) {
	n, err := a.names()
	return &migrations.Config{Names: n}, err
}

// parsed returns the same names for the command's own statements.
func (a *app) parsed() (tables.Tables, error) {
	n, err := a.names()
	if err != nil {
		return tables.Tables{}, err
	}
	t, err := tables.Parse(n)
	if err != nil {
		return t, usage("%w", err)
	}
	return t, nil
}
