package command

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"strings"
	"testing"

	"github.com/pgfrontier/worker/store"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		args   string
		help   bool
		stderr string
		status int
	}{
		{"-n 7", false, "", OK},
		{"-h", true, "", OK},
		{"-fast", false, "tool: flag provided but not defined: -fast (see -h)\n", Error},
		{"-n 7 now", false, "tool: unexpected argument \"now\" (see -h)\n", Error},
	} {
		f := Flags("tool")
		n := f.Int("n", 1, "`number` of times")
		var stdout, stderr bytes.Buffer
		err := Parse(f, strings.Fields(c.args), &stdout, "Usage: tool\n", "Exit status: ...\n")
		status := OK
		if err != nil {
			status = Refuse("tool", err, &stderr)
		}
		if status != c.status || stderr.String() != c.stderr || errors.Is(err, flag.ErrHelp) != c.help {
			t.Errorf("%s: status %d, %v, and it says %q", c.args, status, err, stderr.String())
		}
		if err == nil && (*n != 7 || !Given(f)["n"]) {
			t.Errorf("%s: n is %d, given: %v", c.args, *n, Given(f))
		}
		if help := stdout.String(); c.help && !(strings.HasPrefix(help, "Usage: tool\n  -n number") && strings.HasSuffix(help, "Exit status: ...\n")) || !c.help && help != "" {
			t.Errorf("%s: prints %q", c.args, help)
		}
	}
}

func TestSetName(t *testing.T) {
	var n store.Names
	f := Flags("tool")
	NameFlags(f, &n)
	if err := Parse(f, []string{"-schema", "app", "-prefix", "x_"}, io.Discard, "", ""); err != nil {
		t.Fatal(err)
	}
	if err := Parse(f, []string{"-schema", ""}, io.Discard, "", ""); err != nil || n.Schema != "" {
		t.Errorf("no schema: %q, %v", n.Schema, err)
	}
	if err := Parse(f, []string{"-prefix", "1_"}, io.Discard, "", ""); err == nil || !strings.Contains(err.Error(), `"1_" for flag -prefix: identifiers`) {
		t.Errorf("a wrong prefix: %v", err)
	}
	n.Prefix = "x_"
	if err := errors.Join(SetName(&n, "worker-nodes", "nodes"), SetName(&n, "schema", "infra")); err != nil {
		t.Fatal(err)
	}
	if want := (store.Names{Schema: "infra", Prefix: "x_", WorkerNodes: "nodes"}); n != want {
		t.Errorf("the names are %+v, want %+v", n, want)
	}
	for key, name := range map[string]string{`"nodes"`: "x", `"jobs"`: "", "events: ": "a b", "schema: ": "a.b", "prefix: ": "1_"} {
		if err := SetName(&n, strings.Trim(key, `": `), name); err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s=%s: %v", key, name, err)
		}
	}
}

func TestFail(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		ctx  context.Context
		err  string
		want string
	}{
		{t.Context(), "no server", "tool: no server\n"},
		{t.Context(), "tool: no server", "tool: no server\n"},
		{ended, "context canceled", "tool: interrupted\n"},
	} {
		var stderr bytes.Buffer
		if status := Fail(c.ctx, "tool", errors.New(c.err), &stderr); status != Error || stderr.String() != c.want {
			t.Errorf("%q: status %d, and it says %q, want %q", c.err, status, stderr.String(), c.want)
		}
	}
}

func TestSeed(t *testing.T) {
	if seed, err := Seed("18446744073709551615"); err != nil || seed != 1<<64-1 {
		t.Errorf("the greatest seed: %d, %v", seed, err)
	}
	if _, err := Seed("-1"); err == nil || !strings.Contains(err.Error(), `-seed "-1" is not a number`) {
		t.Errorf("a seed below 0: %v", err)
	}
	if seed, err := Seed(""); err != nil || seed >= 1<<32 {
		t.Errorf("a drawn seed: %d, %v", seed, err)
	}
}

// Where no terminal shows it at the moment, lines come every few seconds only.
func TestProgressIsRare(t *testing.T) {
	var out bytes.Buffer
	p := NewProgress(&out)
	for range 10 {
		p.Show("on its way")
	}
	p.last = p.last.Add(-lineEvery)
	p.Show("far")
	p.Done()
	if out.String() != "far\n" {
		t.Errorf("it shows %q", out.String())
	}
}
