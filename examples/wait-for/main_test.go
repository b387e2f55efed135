package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/pgfrontier/worker/examples/internal/program"
	"github.com/pgfrontier/worker/internal/lab/pgtest"
)

func TestMain(m *testing.M) { program.Main(m, main) }

// A customer who orders sees totals that have the order, each time.
func TestWaitFor(t *testing.T) {
	p := program.Start(t, []string{"DATABASE_URL=" + pgtest.Server(t).URL("")})
	orders := p.Await(t, `^curl -L -d cents=500 (http://127\.0\.0\.1:\d+/orders)$`)[0]
	for n := 1; n <= 20; n++ {
		status, body := place(t, orders, "500")
		if want := fmt.Sprintf("%d orders, %d cents\n", n, 500*n); status != http.StatusOK || body != want {
			t.Fatalf("after %d orders the totals are, with status %d, %q", n, status, body)
		}
	}
	if status, body := place(t, orders, "no"); status != http.StatusBadRequest {
		t.Errorf("an order of no cents: %d %s", status, body)
	}
	p.Interrupt(t)
	if _, err := http.Get(orders); err == nil {
		t.Error("the shop is still there")
	}
}

// place orders as curl -L does. Where the totals do not have the order yet, it loads them again, as
// they ask for.
func place(t *testing.T, orders, cents string) (status int, body string) {
	t.Helper()
	answer, err := http.PostForm(orders, url.Values{"cents": {cents}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != http.StatusServiceUnavailable {
			return answer.StatusCode, string(text)
		}
		if answer, err = http.Get(answer.Request.URL.String()); err != nil {
			t.Fatal(err)
		}
	}
}
