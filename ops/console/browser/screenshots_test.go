package browser

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

var screenshots = flag.String("screenshots", "", "TestScreenshots: write the pictures of the documentation to this `folder`")

// The pictures of the documentation are of pages as they are.
func TestScreenshots(t *testing.T) {
	if *screenshots == "" {
		t.Skip("-screenshots names no folder")
	}
	s := newSite(t, "")
	s.furnish(t, "")
	s.Exec(t, `UPDATE worker_nodes SET consumers = '{totals_v1,mail_v1,shipping_v1}', heartbeat_at = now(), heartbeat_timeout = '1 day', status = status - 'FrontierError'`)
	s.Exec(t, `INSERT INTO consumer_assignments (consumer_name, worker_id) SELECT consumer_name, worker_id FROM consumer_checkpoints, worker_nodes WHERE consumer_name <> 'stopped_v1'`)
	s.Exec(t, `UPDATE events SET created_at = now() - (101 - global_position) * interval '1 s'`)
	s.Exec(t, `INSERT INTO consumer_checkpoints_settled (log, settled)
		SELECT ('events_global_position_seq'::regclass::oid::bigint << 32) | pg_relation_filenode('events_global_position_seq')::bigint, 88`)
	b := open(t)
	const width = 1180
	b.look(t, width, "light")
	b.run(t, chromedp.Navigate(s.base))
	for i, end := 0, time.Now().Add(2*time.Minute); time.Now().Before(end); i++ { // for the sparklines
		for name, position := range map[string]int{"totals_v1": 20 + i*7, "mail_v1": 100 - i*i%9, "shipping_v1": 3 + i*i/3} {
			s.Exec(t, `UPDATE consumer_checkpoints SET last_position = least($2::bigint, 100) WHERE consumer_name = $1`, name, position)
		}
		before := evaluate[string](t, b, `document.documentElement.dataset.updates || "0"`)
		b.until(t, `Number(document.documentElement.dataset.updates) > `+before+` + 4`)
	}
	for name, shot := range map[string]struct{ address, form, theme string }{
		"console-overview": {"", "", "light"},
		"console-dark":     {"", "", "dark"},
		"console-letters":  {"letters?consumer=totals_v1&error=customer", "", "light"},
		"console-preview":  {"consumer?name=stopped_v1", "#retire form", "light"},
	} {
		b.look(t, width, shot.theme)
		b.run(t, chromedp.Navigate(s.base+shot.address))
		if shot.form != "" {
			b.ask(t, shot.form)
		}
		height := min(evaluate[float64](t, b, `document.body.getBoundingClientRect().height`), 620)
		picture := command(t, b, page.CaptureScreenshot, page.CaptureScreenshotParams{Clip: &page.Viewport{Width: width, Height: height, Scale: 1}}).Data
		if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
		t.Log(name, strconv.Itoa(len(picture)), "bytes")
	}
}
