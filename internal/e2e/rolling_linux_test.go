package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
	"github.com/pgfrontier/worker/internal/lab/tier"
	"github.com/pgfrontier/worker/migrations"
)

// oldestCommit is the last one of the oldest version whose programs may run
// beside these tables.
const oldestCommit = "0e15dda57efaacf7dda42ca86c01933b8182a68c"

// buildPod builds testdata/pod in the sources of a commit.
func buildPod(t *testing.T, commit string) (program string) {
	t.Helper()
	sources, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "archive", commit).Output()
	if err != nil {
		t.Skipf("commit %s is not here (no git, no history, or a shallow clone), so the old program cannot be built: %v", commit, err)
	}
	dir, pod := t.TempDir(), filepath.Join("testdata", "pod")
	err = unpack(dir, tar.NewReader(bytes.NewReader(sources)))
	if err == nil {
		err = os.RemoveAll(filepath.Join(dir, pod)) // a later commit has one of its own
	}
	if err == nil {
		err = os.CopyFS(filepath.Join(dir, pod), os.DirFS(pod))
	}
	if err != nil {
		t.Fatal(err)
	}
	program = filepath.Join(dir, "old-pod")
	c := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./"+filepath.ToSlash(pod))
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v, in commit %s:\n%s", err, commit, out)
	}
	return program
}

// unpack writes the plain files of an archive.
func unpack(dir string, archive *tar.Reader) error {
	for {
		header, err := archive.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case header.Typeflag != tar.TypeReg:
			continue
		}
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		content, err := io.ReadAll(archive)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, content, 0o600)
		}
		if err != nil {
			return err
		}
	}
}

// awaitShares waits until these processes, and no others, run the consumers in
// equal shares.
func (p *pair) awaitShares(t *testing.T, processes ...*process) {
	t.Helper()
	want := map[string]int{}
	for _, q := range processes {
		want[fmt.Sprint(q.Pid())] = consumersOfPair / len(processes)
	}
	await(t, fmt.Sprintf("%d processes to share the consumers", len(processes)), func() bool {
		var got map[string]int
		text := one[string](t, p.DB, `SELECT coalesce(json_object_agg(pid, n), '{}')::text
			FROM (SELECT n.pid, count(*) AS n FROM consumer_assignments AS a JOIN worker_nodes AS n USING (worker_id) GROUP BY n.pid) AS shares`)
		return json.Unmarshal([]byte(text), &got) == nil && maps.Equal(got, want)
	})
}

// progress has events handled around appends that were rolled back, by each of
// the processes.
func (p *pair) progress(t *testing.T, processes ...*process) {
	t.Helper()
	p.awaitShares(t, processes...)
	from := p.want
	for range 3 {
		p.append(t, 10)
		if err := beginAppend(t, p.DB, "Order", "never", 2).Rollback(); err != nil {
			t.Fatal(err)
		}
	}
	p.append(t, 1)
	p.awaitAll(t)
	for _, q := range processes {
		if n := one[int](t, p.DB, `SELECT count(DISTINCT consumer) FROM signed WHERE position > $1 AND process = $2`, from, q.name); n < consumersOfPair/len(processes) {
			t.Errorf("%s handles events of %d consumers, with %d processes", q.name, n, len(processes))
		}
	}
}

// A process of the old program that restarts after an upgrade of the tables goes
// on, beside those of the new one, and alone when that is rolled back.
func TestOldProgramBesideNewerTables(t *testing.T) {
	tier.Long(t, "TestUpgradeOfAPeersDatabase, which upgrades tables under a consumer")
	t.Parallel()
	program := buildPod(t, oldestCommit)
	p := &pair{Database: pgtest.Empty(t)}
	p.Exec(t, `CREATE TABLE signed (id BIGSERIAL, consumer TEXT, position BIGINT, aggregate TEXT, version BIGINT, process TEXT)`)
	r := role{Consumers: consumersOfPair, Heartbeat: 200 * time.Millisecond, HeartbeatTimeout: 5 * time.Second}
	older := func(name string) *process { r.Name = name; return startProgram(t, program, p.Database, r) }
	newer := func(name string) *process { r.Name = name; return startProcess(t, p.Database, r) }
	end := func(q *process, s syscall.Signal) {
		q.signal(t, s)
		q.ended(t)
	}
	first, second := older("process-old-1"), older("process-old-2")
	await(t, "the old program to make its tables", func() bool {
		return one[bool](t, p.DB, `SELECT to_regclass('consumer_checkpoints_schema') IS NOT NULL`)
	})
	p.progress(t, first, second)
	if err := migrations.Check(t.Context(), p.DB, nil); !errors.Is(err, migrations.ErrNotApplied) {
		t.Fatalf("the old program's tables are the new ones', so this test shows nothing: %v", err)
	}
	if err := migrations.Apply(t.Context(), p.DB, nil); err != nil {
		t.Fatal(err)
	}
	p.progress(t, first, second)

	end(first, syscall.SIGKILL)
	first = older("process-old-3")
	p.progress(t, first, second)
	end(second, syscall.SIGTERM)
	second = newer("process-new-1")
	p.progress(t, first, second)
	end(first, syscall.SIGTERM)
	p.progress(t, second)
	first = older("process-old-4")
	p.progress(t, first, second) // the new one leads
	end(second, syscall.SIGKILL)
	p.progress(t, first)
	if err := migrations.Check(t.Context(), p.DB, nil); err != nil {
		t.Errorf("after the old program's migrations: %v", err)
	}
}
