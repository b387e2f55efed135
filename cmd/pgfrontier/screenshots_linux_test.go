package main

import (
	"context"
	"database/sql"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"

	"github.com/pgfrontier/worker"
	"github.com/pgfrontier/worker/store"
	"github.com/pgfrontier/worker/store/consumer"
)

var screenshots = flag.String("screenshots", "", "TestScreenshots: write the pictures of the documentation to this `folder`")

// The pictures of the documentation are of top as it is, before a worker and a log that
// grows.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("-screenshots names no folder")
	}
	s := newSite(t)
	s.append(t, 200)
	if err := s.begin(t, "order-4711", 1).Commit(); err != nil {
		t.Fatal(err)
	}
	w := worker.New(s.DB, newStore(), []consumer.Consumer{
		posed{name: "totals_v1"}, posed{name: "search_v1", takes: 30 * time.Millisecond}, posed{name: "mail_v1", fails: "order-4711"}, posed{name: "audit_v1"},
	}, worker.WithPollInterval(5*time.Millisecond), worker.WithMaxPollInterval(20*time.Millisecond), worker.WithBatchSize(20),
		worker.WithFailurePolicy(worker.FailPause), worker.WithMaxConsecutiveFailures(2))
	ended := make(chan error, 1)
	go func() { ended <- w.Start(context.Background()) }()
	t.Cleanup(func() {
		w.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	await(t, "mail_v1 to stand still", func() bool {
		return value[int](t, s, `SELECT count(*) FROM consumer_checkpoints WHERE consumer_name = 'mail_v1' AND paused_at IS NOT NULL`) == 1
	})
	s.expect(t, exitDone, []string{"pause", "audit_v1", "--reason", "its table is moved"})
	at := s.sit(t, "top", "--every", "1s")
	if err := pty.Setsize(at.keys, &pty.Winsize{Rows: 13, Cols: terminalWide}); err != nil {
		t.Fatal(err)
	}
	mark := at.sees(0, "mail_v1")
	for looks, last := 0, mark; looks < 6; { // the first has no rates
		s.append(t, 1)
		if mark = strings.LastIndex(at.screen.String(), "\x1b[H"); mark > last {
			looks, last = looks+1, mark
		}
	}
	at.sees(mark, frameEnd)
	at.draw("top")
	for !strings.Contains(at.screen.String()[mark:], "> mail_v1") {
		mark = len(at.screen.String())
		at.press("j")
		mark = at.sees(mark, "\x1b[H")
		at.sees(mark, frameEnd)
	}
	at.press("s")
	mark = at.sees(mark, "skip of mail_v1")
	at.press("order 4711 has no address" + enterKey)
	mark = at.sees(mark, "to do it")
	at.sees(mark, frameEnd)
	at.draw("top-skip")
	at.press(escapeKey)
	at.sees(mark, "nothing was changed")
	at.press("q")
	at.leaves(exitDone)
}

// posed is a consumer for a picture.
type posed struct {
	name  string
	takes time.Duration // for an event
	fails string        // at events of this aggregate
}

func (p posed) Name() string { return p.name }

func (p posed) Handle(ctx context.Context, _ *sql.Tx, e store.PersistedEvent) error {
	if e.AggregateID == p.fails {
		return errors.New("the customer has no address")
	}
	select {
	case <-time.After(p.takes):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// draw writes what the terminal shows as a picture, each character in a cell of its own.
func (s *seat) draw(name string) {
	s.t.Helper()
	const cell, line, size = 8, 18, 13
	written := s.screen.String()
	frame := written[strings.LastIndex(written, "\x1b[H")+len("\x1b[H"):]
	frame, _, _ = strings.Cut(frame, frameEnd)
	lines := strings.Split(strings.TrimRight(strings.NewReplacer("\x1b[K", "", "\x1b[J", "").Replace(frame), "\r\n "), "\r\n")
	wide, high := (terminalWide+4)*cell, (len(lines)+1)*line
	var picture strings.Builder
	fmt.Fprintf(&picture, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="%d">`+"\n", wide, high, wide, size)
	fmt.Fprintf(&picture, `<rect width="%d" height="%d" rx="6" fill="#16181d"/>`+"\n", wide, high)
	for i, text := range lines {
		colour := "#d7dae0"
		if chosen, ok := strings.CutPrefix(text, chosenOn); ok {
			text, colour = strings.TrimSuffix(chosen, chosenOff), "#16181d"
			fmt.Fprintf(&picture, `<rect x="%d" y="%d" width="%d" height="%d" fill="#d7dae0"/>`+"\n", cell, i*line+line/2, wide-2*cell, line)
		}
		if text = strings.TrimRight(text, " "); text == "" {
			continue
		}
		fmt.Fprintf(&picture, `<text x="%d" y="%d" fill="%s" textLength="%d" xml:space="preserve">`, 2*cell, (i+1)*line+4, colour, cell*utf8.RuneCountInString(text))
		_ = xml.EscapeText(&picture, []byte(text))
		picture.WriteString("</text>\n")
	}
	picture.WriteString("</svg>\n")
	if err := os.WriteFile(filepath.Join(*screenshots, name+".svg"), []byte(picture.String()), 0o644); err != nil {
		s.t.Fatal(err)
	}
}
