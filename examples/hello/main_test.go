package main

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/examples/internal/program"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// A newcomer without a server runs the example, does what it says, and interrupts it.
func TestHello(t *testing.T) {
	temp, err := os.MkdirTemp("", "hello-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(temp)
	if err := os.Chmod(temp, 0o777); err != nil { // root's server runs as another user
		t.Fatal(err)
	}
	p := program.Start(t, []string{"DATABASE_URL=", "TMPDIR=" + temp}, "-every", "50ms", "-open=false")
	site := p.Await(t, `^The console is at (http://127\.0\.0\.1:\d+/)$`)[0]
	p.Await(t, `^totals_v1 stands still: .*an order of -300 cents`)
	page := strings.TrimPrefix(p.Await(t, `^  1\. Open (.*)$`)[0], site)

	// The other consumer goes on.
	p.Await(t, `^order \d+: .*totals_v1: 2 orders, 300 cents\. parcels_v1: \d{2,} parcels`)
	change(t, site, page, "skip")
	change(t, site, page, "resume")
	p.Await(t, `totals_v1: \d{2,} orders`)

	browser, err := http.Get(site + "live?page=") // watches until the console ends that
	if err != nil {
		t.Fatal(err)
	}
	defer browser.Body.Close()
	p.Interrupt(t)
	if seen, err := io.ReadAll(browser.Body); err != nil || !strings.Contains(string(seen), "totals_v1") {
		t.Errorf("the live updates of the overview: %v\n%s", err, seen)
	}
	left, err := os.ReadDir(temp)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := http.Get(site); err == nil {
		t.Error("the console is still there")
	}
}

// change finds a form on a page, sends it, and confirms the preview.
func change(t *testing.T, site, page, kind string) {
	t.Helper()
	form := hidden(t, send(t, site+page, nil), kind)
	form.Set("reason", "nobody orders less than nothing")
	confirmed := hidden(t, send(t, site+"change", form), kind)
	if done := send(t, site+"change", confirmed); !strings.Contains(done, "Done: "+kind) {
		t.Fatalf("%s is not done:\n%s", kind, done)
	}
}

// send asks for a page, or sends a form, and follows where that leads.
func send(t *testing.T, address string, form url.Values) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %s, %v\n%s", method, address, answer.Status, err, body)
	}
	return string(body)
}

var field = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// hidden returns what the form of a kind carries.
func hidden(t *testing.T, body, kind string) url.Values {
	t.Helper()
	for _, form := range regexp.MustCompile(`(?s)<form.*?</form>`).FindAllString(body, -1) {
		if !strings.Contains(form, fmt.Sprintf(`name="kind" value=%q`, kind)) {
			continue
		}
		fields := url.Values{}
		for _, f := range field.FindAllStringSubmatch(form, -1) {
			fields.Set(html.UnescapeString(f[1]), html.UnescapeString(f[2]))
		}
		return fields
	}
	t.Fatalf("there is no form to %s:\n%s", kind, body)
	return nil
}
