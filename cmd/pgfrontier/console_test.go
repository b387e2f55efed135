package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

// begun is a run of the command that goes on.
type begun struct {
	out, talk pgtest.Lines
	stop      context.CancelFunc
	code      chan int
}

func (s site) start(t testing.TB, p place, args ...string) *begun {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	b := &begun{stop: cancel, code: make(chan int, 1)}
	p.out, p.talk, p.getenv = &b.out, &b.talk, func(key string) string { return s.env[key] }
	if p.in == nil {
		p.in = strings.NewReader("")
	}
	go func() { b.code <- run(ctx, args, p) }()
	t.Cleanup(func() { cancel() })
	return b
}

// end waits for the status.
func (b *begun) end(t testing.TB) int {
	t.Helper()
	select {
	case code := <-b.code:
		return code
	case <-time.After(patience):
		t.Fatalf("waited in vain for the command to end\n%s%s", b.out.String(), b.talk.String())
	}
	return -1
}

func get(t testing.TB, method, address string, form url.Values) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// The console is served to who has its address, changes things as the operator, and ends
// with the command.
func TestConsole(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t, 0)
	b := s.start(t, place{}, words("console --listen 127.0.0.1:0 --environment staging")...)
	await(t, "the address", func() bool { return strings.HasSuffix(b.out.String(), "\n") })
	address := strings.TrimSpace(b.out.String())
	found := regexp.MustCompile(`^(http://127\.0\.0\.1:\d+/)([A-Z2-7]{26,})/$`).FindStringSubmatch(address)
	if found == nil {
		t.Fatalf("the address is %q", address)
	}
	await(t, "the word to the operator", func() bool { return strings.Contains(b.talk.String(), "as ann") })
	if strings.Contains(b.talk.String(), found[2]) {
		t.Errorf("the secret is said twice: %s", b.talk.String())
	}

	for _, wrong := range []string{found[1], found[1] + "consumer?name=c", found[1] + strings.Repeat("A", len(found[2])) + "/", found[1] + found[2][:25] + "/", found[1] + found[2] + "A/", found[1] + "style.css", found[1] + "x/../change"} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			if status, body := get(t, method, wrong, nil); status != http.StatusForbidden && status != http.StatusTemporaryRedirect || strings.Contains(body, "<table") {
				t.Errorf("%s %s: status %d\n%s", method, wrong, status, body)
			}
		}
	}
	if status, body := get(t, http.MethodGet, address, nil); status != http.StatusOK || !strings.Contains(body, "consumer?name=c") || !strings.Contains(body, ", staging</strong>") {
		t.Errorf("status %d\n%s", status, body)
	}
	if status, _ := get(t, http.MethodGet, strings.TrimSuffix(address, "/"), nil); status != http.StatusTemporaryRedirect {
		t.Errorf("without the last slash: status %d", status)
	}
	form := url.Values{"on": {"consumer"}, "name": {"c"}, "kind": {"pause"}, "reason": {"lunch"}, "revision": {"0"}, "step": {"make"}}
	if status, body := get(t, http.MethodPost, address+"change", form); status != http.StatusSeeOther {
		t.Errorf("a change: status %d\n%s", status, body)
	}
	s.expect(t, exitDone, words("operations"), "ann: lunch")
	_, port, _ := strings.Cut(strings.TrimPrefix(strings.Trim(found[1], "/"), "http://"), ":")
	s.expect(t, exitUnable, words("console --listen 127.0.0.1:"+port), "is in use")

	live, err := net.Dial("tcp", "127.0.0.1:"+port) // a browser has it open while it ends
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	if _, err := io.WriteString(live, "GET /"+found[2]+"/live?page= HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer := bufio.NewReader(live)
	if head, err := answer.ReadString('\n'); err != nil || !strings.Contains(head, "200 OK") {
		t.Fatalf("the live updates: %v, %s", err, head)
	}
	b.stop()
	if code := b.end(t); code != exitDone {
		t.Errorf("status %d\n%s", code, b.talk.String())
	}
	if rest, err := io.ReadAll(answer); err != nil || !strings.HasSuffix(string(rest), "\r\n0\r\n\r\n") {
		t.Errorf("the live updates were cut: %v, %q", err, rest)
	}
	if conn, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
		_ = conn.Close()
		t.Error("the port is still open")
	}
}

// Each console has another secret, and the flag that insists is needed for other addresses.
func TestConsoleAnywhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var urls []string
	for range 2 {
		b := s.start(t, place{}, words("console --listen :0 --anywhere --operator bob -o json")...)
		await(t, "the address", func() bool { return strings.HasSuffix(b.out.String(), "\n") })
		var data struct {
			Version       int
			URL, Operator string
		}
		if err := json.Unmarshal([]byte(b.out.String()), &data); err != nil || data.Version != jsonVersion || data.Operator != "bob" {
			t.Errorf("%v: printed %s", err, b.out.String())
		}
		urls = append(urls, data.URL[strings.LastIndex(strings.TrimSuffix(data.URL, "/"), "/"):])
		b.stop()
		if code := b.end(t); code != exitDone {
			t.Errorf("status %d", code)
		}
	}
	if urls[0] == urls[1] {
		t.Errorf("the secret is %s twice", urls[0])
	}
}
