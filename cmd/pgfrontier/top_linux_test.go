package main

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/term"

	"github.com/pgfrontier/worker/internal/ident"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// seat is the command at a pseudo terminal.
type seat struct {
	t       testing.TB
	keys    *os.File
	tty     *os.File
	before  *term.State
	screen  pgtest.Lines // all that was ever written to it
	process *exec.Cmd
	ended   chan error
}

const terminalWide = 110 // characters

func (s site) sit(t testing.TB, args ...string) *seat {
	t.Helper()
	keys, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keys.Close(); _ = tty.Close() })
	if err := pty.Setsize(keys, &pty.Winsize{Rows: 30, Cols: terminalWide}); err != nil {
		t.Fatal(err)
	}
	at := &seat{t: t, keys: keys, tty: tty, ended: make(chan error, 1)}
	if at.before, err = term.GetState(int(tty.Fd())); err != nil {
		t.Fatal(err)
	}
	go func() {
		buffer := make([]byte, 32<<10)
		for {
			n, err := keys.Read(buffer)
			_, _ = at.screen.Write(buffer[:n])
			if err != nil {
				return
			}
		}
	}()
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), asCommand+"=1", "TERM=xterm-256color", "DATABASE_URL="+s.env["DATABASE_URL"], "PGFRONTIER_OPERATOR=ann")
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	at.process = c
	go func() { at.ended <- c.Wait() }()
	t.Cleanup(func() { _ = c.Process.Kill() })
	return at
}

// type presses keys.
func (s *seat) press(keys string) {
	s.t.Helper()
	if _, err := s.keys.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

// sees waits for a text that is written after a mark, and returns the next mark.
func (s *seat) sees(mark int, text string) int {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		all := s.screen.String()
		if at := strings.Index(all[mark:], text); at >= 0 {
			return mark + at + len(text)
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain for %q on the screen:\n%q", text, all[mark:])
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// leaves demands that the command has ended with a status, and that the terminal is as
// it was.
func (s *seat) leaves(code int) {
	s.t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		s.t.Fatalf("waited in vain for the command to end:\n%q", s.screen.String())
	}
	if got := s.process.ProcessState.ExitCode(); got != code {
		s.t.Errorf("status %d, want %d", got, code)
	}
	s.sees(0, "\x1b[?1049l") // the screen before
	s.sees(0, "\x1b[?25h")   // the cursor
	now, err := term.GetState(int(s.tty.Fd()))
	if err != nil || !reflect.DeepEqual(now, s.before) {
		s.t.Errorf("%v: the terminal is %v, and was %v", err, now, s.before)
	}
}

const (
	enterKey  = "\r"
	escapeKey = "\x1b"
	interrupt = "\x03"
)

// An operator reads a consumer, pauses it, keeps the view while the database is away, skips
// an event, and quits.
func TestTopAtATerminal(t *testing.T) {
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 0)
	at := s.sit(t, "top", "--every", "100ms")
	mark := at.sees(0, "\x1b[?1049h")
	mark = at.sees(mark, "head 3")
	at.sees(mark, "unowned")

	at.press("p")
	mark = at.sees(mark, "pause of c")
	at.press("lunch" + enterKey)
	mark = at.sees(mark, "enter does it")
	if n := value[int](t, s, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Error("it was paused before it was confirmed")
	}
	at.press(enterKey)
	mark = at.sees(mark, "pause of c: done")
	if by := value[string](t, s, `SELECT operator || ': ' || reason FROM consumer_operations`); by != "ann: lunch" {
		t.Errorf("recorded is %s", by)
	}

	allow := s.gate(t)
	allow(false)
	mark = at.sees(mark, "this is as of")
	s.append(t, 4) // over a connection that is there already
	allow(true)
	mark = at.sees(mark, "head 7")

	at.press("s")
	mark = at.sees(mark, "the event at 1")
	at.press("bad" + enterKey)
	mark = at.sees(mark, "type c to do it")
	at.press("c" + enterKey)
	mark = at.sees(mark, "skip of c: done")
	if p := s.position(t); p != 1 {
		t.Errorf("the consumer is at %d, want 1", p)
	}
	at.press(enterKey)
	mark = at.sees(mark, "NEXT OF")
	at.press(escapeKey)
	at.sees(mark, "EV/S")
	at.press("q")
	at.leaves(exitDone)
}

// What was shown is made, or nothing: not what a batch has made of it meanwhile.
func TestTopMakesWhatItShowed(t *testing.T) {
	s := newSite(t)
	s.append(t, 3)
	s.place(t, 0)
	a := &app{place: place{getenv: func(key string) string { return s.env[key] }}, timeout: patience}
	defer a.close()
	at := &screen{app: a, ctx: t.Context()}
	shown, _ := at.do(orderPreview{request{'s', "c", 1, "r"}}).(previewed)
	if shown.err != nil || len(shown.would.effects) != 1 {
		t.Fatalf("shown is %+v", shown)
	}
	s.Exec(t, `UPDATE consumer_checkpoints SET revision = revision + 1`)
	if m, _ := at.do(orderMake{shown.request, shown.would}).(made); exitOf(m.err) != exitRefused || s.position(t) != 0 {
		t.Errorf("%v, and the consumer is at %d", m.err, s.position(t))
	}
}

// gate lets nobody connect, and ends the command's connections.
func (s site) gate(t testing.TB) func(open bool) {
	t.Helper()
	admin, err := sql.Open("pgx", pgtest.Server(t).URL(""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	name := value[string](t, s, `SELECT current_database()`)
	return func(open bool) {
		if _, err := admin.Exec(fmt.Sprintf(`ALTER DATABASE %s ALLOW_CONNECTIONS %t`, ident.Quote(name), open)); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND application_name = 'pgfrontier' AND NOT $2::bool`, name, open); err != nil {
			t.Fatal(err)
		}
	}
}

// The terminal is as it was after Ctrl-C, while something is asked too, and after the
// process was told to end.
func TestTopGivesTheTerminalBack(t *testing.T) {
	s := newSite(t)
	s.place(t, 0)
	for what, leave := range map[string]func(at *seat){
		"Ctrl-C": func(at *seat) { at.press(interrupt) },
		"a reason": func(at *seat) {
			at.press("p")
			at.sees(0, "reason:")
			at.press(interrupt)
		},
		"SIGTERM": func(at *seat) { _ = at.process.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(what, func(t *testing.T) {
			at := s.sit(t, "top")
			at.sees(0, "unowned")
			leave(at)
			at.leaves(exitDone)
		})
	}
	if n := value[int](t, s, `SELECT count(*) FROM consumer_operations`); n != 0 {
		t.Errorf("%d operations were recorded", n)
	}
}

// Before the screen is taken it is said that there is no database, as always.
func TestTopWithoutADatabase(t *testing.T) {
	s := site{env: map[string]string{"DATABASE_URL": "postgres://u:s3cret@127.0.0.1:1/x"}}
	at := s.sit(t, "top")
	at.sees(0, "does not answer")
	<-at.ended
	if code := at.process.ProcessState.ExitCode(); code != exitUnable || strings.Contains(at.screen.String(), "s3cret") || strings.Contains(at.screen.String(), "\x1b[?1049h") {
		t.Errorf("status %d, %q", code, at.screen.String())
	}
}

// At a terminal the question of a verb is asked and answered as well.
func TestConfirmedAtATerminal(t *testing.T) {
	s := newSite(t)
	s.append(t, 2)
	s.place(t, 0)
	at := s.sit(t, "skip", "c", "1", "--reason", "r")
	at.sees(0, "Type c to do it:")
	at.press("c\r")
	at.sees(0, "skip of c: done")
	<-at.ended
	if code := at.process.ProcessState.ExitCode(); code != exitDone || s.position(t) != 1 {
		t.Errorf("status %d, the consumer is at %d", code, s.position(t))
	}
}

// A change whose answer nobody reads has been made, and says so.
func TestClosedPipe(t *testing.T) {
	s := newSite(t)
	s.append(t, 1)
	s.place(t, 0)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = read.Close()
	c := exec.CommandContext(t.Context(), os.Args[0], words("pause c --reason r")...)
	c.Env = append(os.Environ(), asCommand+"=1", "DATABASE_URL="+s.env["DATABASE_URL"])
	var talk strings.Builder
	c.Stdout, c.Stderr = write, &talk
	if err := c.Run(); err != nil || !strings.Contains(talk.String(), "pause of c: done, and cannot print it") {
		t.Errorf("%v: %s", err, talk.String())
	}
	_ = write.Close()
}
