package console_test

import (
	"context"
	"encoding/json"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/jobs"
	"github.com/pgfrontier/worker/migrations"
	"github.com/pgfrontier/worker/ops/console"
	"github.com/pgfrontier/worker/store"
	storepostgres "github.com/pgfrontier/worker/store/postgres"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = pgtest.Patience

// await polls until done holds.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	if !pgtest.Poll(done) {
		t.Fatalf("waited in vain for: %s", what)
	}
}

// operators may do everything, under the name that the request's header Operator gives.
func operators(r *http.Request) console.Grant {
	return console.Grant{Operator: r.Header.Get("Operator"), Level: console.Operate}
}

// site is a database with all tables, and a console below a prefix.
type site struct {
	*pgtest.Database
	*console.Console
	server *httptest.Server
	base   string // ends with a slash
}

const prefix = "/a/b"

func newSite(t testing.TB, o console.Options) *site {
	t.Helper()
	d := pgtest.New(t)
	if err := migrations.ApplyJobs(t.Context(), d.DB, nil); err != nil {
		t.Fatal(err)
	}
	s := &site{Database: d, Console: console.New(d.DB, o)}
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, s.Console))
	s.server = httptest.NewServer(mux)
	s.base = s.server.URL + prefix + "/"
	t.Cleanup(func() {
		s.Close()
		s.server.Close()
	})
	return s
}

// answer is what the console has answered.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request. Headers come in pairs.
func (s *site) do(t testing.TB, method, path string, form url.Values, headers ...string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, s.base+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	r.Header.Set("Operator", "ann")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	got, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	body, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{got.StatusCode, got.Header, string(body)}
}

// ask sends a request that changes nothing, and sends it again while the answer asks for it because the
// database was late.
func (s *site) ask(t testing.TB, method, path string, form url.Values, headers ...string) (got answer) {
	t.Helper()
	pgtest.Poll(func() bool {
		got = s.do(t, method, path, form, headers...)
		return got.status != http.StatusServiceUnavailable || !strings.Contains(got.body, context.DeadlineExceeded.Error())
	})
	return got
}

func (s *site) get(t testing.TB, path string, headers ...string) answer {
	t.Helper()
	return s.ask(t, http.MethodGet, path, nil, headers...)
}

// read reads a page's data.
func (s *site) read(t testing.TB, path string, into any) {
	t.Helper()
	got := s.get(t, path, "Accept", "application/json")
	if err := json.Unmarshal([]byte(got.body), into); err != nil || got.status != http.StatusOK {
		t.Fatalf("%s: %d, %v\n%s", path, got.status, err, got.body)
	}
}

// expect fails the test unless an answer has this status.
func (a answer) expect(t testing.TB, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d:\n%s", a.status, status, a.body)
	}
	return a
}

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// hidden are the fields that a form carries. of finds the form.
func (a answer) hidden(t testing.TB, of string) url.Values {
	t.Helper()
	for _, form := range regexp.MustCompile(`(?s)<form.*?</form>`).FindAllString(a.body, -1) {
		if !strings.Contains(form, of) {
			continue
		}
		fields := url.Values{}
		for _, f := range hiddenField.FindAllStringSubmatch(form, -1) {
			fields.Set(html.UnescapeString(f[1]), html.UnescapeString(f[2]))
		}
		return fields
	}
	t.Fatalf("the page has no form with %s:\n%s", of, a.body)
	return nil
}

// with adds fields, in pairs.
func with(form url.Values, more ...string) url.Values {
	for i := 0; i < len(more); i += 2 {
		form.Set(more[i], more[i+1])
	}
	return form
}

// preview sends a form and returns that of the preview.
func (s *site) preview(t testing.TB, form url.Values, headers ...string) url.Values {
	t.Helper()
	return s.ask(t, http.MethodPost, "change", form, headers...).expect(t, http.StatusOK).hidden(t, `name="step" value="make"`)
}

func (s *site) count(t testing.TB, query string) (n int64) {
	t.Helper()
	if err := s.DB.QueryRow(query).Scan(&n); err != nil {
		t.Fatalf("%v, in\n%s", err, query)
	}
	return n
}

// place gives a consumer a checkpoint.
func (s *site) place(t testing.TB, name string, position int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position) VALUES ($1, $2)`, name, position)
}

// split gives a consumer two units, the first of which is paused.
func (s *site) split(t testing.TB, name string, first, second int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_checkpoints (consumer_name, last_position, split_at, paused_at, paused_by, paused_reason) VALUES ($1, 0, now(), now(), 'partitions', 'split')`, name)
	s.place(t, name+"#000-7ff", first)
	s.place(t, name+"#800-fff", second)
	s.Exec(t, `UPDATE consumer_checkpoints SET paused_at = now(), paused_by = 'bob', paused_reason = 'lunch' WHERE consumer_name = $1`, name+"#000-7ff")
}

// append appends events, each of an aggregate of its own.
func (s *site) append(t testing.TB, events ...store.Event) {
	t.Helper()
	log := storepostgres.NewStore(storepostgres.DefaultStoreConfig())
	for _, e := range events {
		e.EventID = uuid.New()
		tx, err := s.DB.BeginTx(t.Context(), nil)
		if err == nil {
			_, err = log.Append(t.Context(), tx, store.NoStream(), []store.Event{e})
		}
		if err == nil {
			err = tx.Commit()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func happened(n int) (all []store.Event) {
	for range n {
		all = append(all, store.Event{AggregateType: "Order", AggregateID: uuid.NewString(), EventType: "Happened", Payload: []byte(`{"secret": 4711}`), Metadata: []byte(`{"user": "secret"}`)})
	}
	return all
}

// letters makes a dead letter of each event up to a position.
func (s *site) letters(t testing.TB, consumer, why string, to int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_dead_letters (consumer_name, global_position, aggregate_type, aggregate_id, event_id, event_type, error, attempts)
		SELECT $1::text, global_position, aggregate_type, aggregate_id, event_id, event_type, $2::text, 1 FROM events WHERE global_position <= $3::bigint`, consumer, why, to)
}

// settle says that everything up to a position is settled.
func (s *site) settle(t testing.TB, position int64) {
	t.Helper()
	s.Exec(t, `INSERT INTO consumer_checkpoints_settled (log, settled)
		SELECT ('events_global_position_seq'::regclass::oid::bigint << 32) | pg_relation_filenode('events_global_position_seq')::bigint, $1::bigint
		ON CONFLICT (log) DO UPDATE SET settled = excluded.settled`, position)
}

// enqueue adds a job in a state and returns its ID.
func (s *site) enqueue(t testing.TB, state jobs.State) (id int64) {
	t.Helper()
	id = s.count(t, `INSERT INTO jobs (kind, queue, args, meta) VALUES ('mail', 'slow', '{"to": "secret"}', '{"by": "secret"}') RETURNING id`)
	if state != jobs.StateAvailable {
		s.Exec(t, `WITH gone AS (DELETE FROM jobs WHERE id = $1 RETURNING *)
			INSERT INTO jobs_history (id, kind, queue, priority, run_at, args, created_at, attempt, failures, resets, max_resets, state, claim, claimed_by, started_at, code, error, meta, result)
			SELECT id, kind, queue, priority, run_at, args, created_at, 1, 1, 0, max_resets, $2, 7, '12345678-0000-0000-0000-000000000000', run_at, 'E7', 'boom', meta, '{"card": "secret"}' FROM gone`, id, string(state))
	}
	return id
}

func decoder(decode func(store.PersistedEvent) (string, error)) func(context.Context, store.PersistedEvent) (string, error) {
	return func(_ context.Context, e store.PersistedEvent) (string, error) { return decode(e) }
}
