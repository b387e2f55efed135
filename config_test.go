package worker

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestValidateNamesOptionValueAndRange(t *testing.T) {
	for name, test := range map[string]struct {
		option Option
		words  []string
	}{
		"batch size":      {WithBatchSize(0), []string{"WithBatchSize", "0", "1 to 100000"}},
		"batch pause":     {WithBatchPause(-time.Second), []string{"WithBatchPause", "-1s", "0s to 1h"}},
		"batch timeout":   {WithBatchTimeout(time.Microsecond), []string{"WithBatchTimeout", "1µs", "10ms to 24h"}},
		"failures":        {WithMaxConsecutiveFailures(-3), []string{"WithMaxConsecutiveFailures", "-3", "1 to"}},
		"poll":            {WithPollInterval(0), []string{"WithPollInterval", "0s", "1ms to"}},
		"max poll":        {WithMaxPollInterval(time.Millisecond), []string{"WithMaxPollInterval", "1ms", "1s to 24h"}},
		"strategy":        {WithDispatcherStrategy("push"), []string{"WithDispatcherStrategy", `"push"`, `"poll" and "notify"`}},
		"notify":          {WithDispatcherStrategy(DispatcherStrategyNotify), []string{"WithNotifyConnectionString"}},
		"channel":         {WithNotifyChannel("a;b"), []string{"WithNotifyChannel", "a;b"}},
		"interval":        {WithDispatcherInterval(2 * time.Hour), []string{"WithDispatcherInterval", "2h0m0s", "1h0m0s"}},
		"heartbeat":       {WithHeartbeatInterval(0), []string{"WithHeartbeatInterval", "0s"}},
		"timeout":         {WithHeartbeatTimeout(6 * time.Second), []string{"WithHeartbeatTimeout", "6s", "10s to"}},
		"host":            {WithHostname("a\x00b"), []string{"WithHostname", `a\x00b`, "200 bytes"}},
		"rebalance":       {WithRebalanceInterval(0), []string{"WithRebalanceInterval", "0s"}},
		"leader":          {WithLeaderStrategy("raft"), []string{"WithLeaderStrategy", `"raft"`, `"lease"`}},
		"assignment":      {WithAssignmentStrategy("greedy"), []string{"WithAssignmentStrategy", `"greedy"`, `"round-robin" and "sticky"`}},
		"failure policy":  {WithFailurePolicy("hope"), []string{"WithFailurePolicy", `"hope"`, `"pause"`}},
		"retry limit":     {WithRetryLimit(time.Second), []string{"WithRetryLimit", "1s", "10s to"}},
		"shutdown":        {WithShutdownTimeout(-1), []string{"WithShutdownTimeout", "-1ns", "10ms to"}},
		"stale":           {WithStaleGapThreshold(0), []string{"WithStaleGapThreshold", "0s"}},
		"harbor":          {WithStaleGapHarborLag(-1), []string{"WithStaleGapHarborLag", "-1"}},
		"gap policy":      {WithGapPolicy("hope"), []string{"WithGapPolicy", `"hope"`}},
		"retention":       {WithGapSkipRetention(time.Millisecond), []string{"WithGapSkipRetention", "1ms", "100ms to"}},
		"open ranges":     {WithMaxOpenRanges(0), []string{"WithMaxOpenRanges", "0"}},
		"hostile table":   {WithWorkerNodesTable("x; drop table y"), []string{"WithWorkerNodesTable", "x; drop table y"}},
		"empty table":     {WithConsumerGapSkipsTable(""), []string{"WithConsumerGapSkipsTable", "empty"}},
		"too long to add": {WithConsumerCheckpointsTable(strings.Repeat("c", 60)), []string{"WithConsumerCheckpointsTable", "63"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := DefaultConfig()
			test.option(&c)
			err := c.Validate()
			if err == nil {
				t.Fatal("accepted")
			}
			for _, word := range test.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
		})
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
}

func TestValidateReportsEverythingAtOnce(t *testing.T) {
	c := DefaultConfig()
	c.BatchSize, c.MaxOpenRanges = 0, 0
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "WithBatchSize") || !strings.Contains(err.Error(), "WithMaxOpenRanges") {
		t.Fatalf("got %v", err)
	}
}

func TestConfigStringHidesTheConnection(t *testing.T) {
	c := DefaultConfig()
	c.NotifyConnectionString = "postgres://me:secret@host/db"
	s := c.String()
	for _, printed := range []string{s, fmt.Sprintf("%v %+v %#v", c, c, &c)} {
		if strings.Contains(printed, "secret") || strings.Contains(printed, "host") {
			t.Fatalf("the connection string shows in\n%s", printed)
		}
	}
	for _, want := range []string{"WithBatchSize(100)", "WithNotifyConnectionString(***)", "WithHeartbeatTimeout(30s)"} {
		if !strings.Contains(s, want) {
			t.Errorf("%q is missing in\n%s", want, s)
		}
	}
}

func TestConsumerErrorUnwraps(t *testing.T) {
	cause := errors.New("boom")
	err := error(&ConsumerError{Consumer: "c", Failures: 5, Err: errors.Join(ErrConsecutiveFailures, cause)})
	if !errors.Is(err, ErrConsecutiveFailures) || !errors.Is(err, cause) {
		t.Fatalf("%v does not wrap both", err)
	}
}

// A connection string that is none is refused before anything runs, and not
// shown: it may hold a password.
func TestNotifyConnectionStringIsChecked(t *testing.T) {
	for _, conn := range []string{"postgres://app:s3cret%@localhost/app", "postgres://app:s3cret@local host:port/app", "password=s3cret host", "host=localhost password=s3cret sslmode=perhaps"} {
		c := DefaultConfig()
		WithDispatcherStrategy(DispatcherStrategyNotify)(&c)
		WithNotifyConnectionString(conn)(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "WithNotifyConnectionString") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", conn, err)
		}
	}
}

// Every field of Config that an option sets to a plain value has its line in the
// table of options, which prints it.
func TestOptionTableIsComplete(t *testing.T) {
	elsewhere := map[string]bool{"Observers": true, "Decoder": true, "BatchMiddleware": true, "HandleMiddleware": true, "loggers": true}
	printed := DefaultConfig().String() + "WithNotifyConnectionString("
	config := reflect.TypeFor[Config]()
	for i := range config.NumField() {
		if name := config.Field(i).Name; elsewhere[name] == strings.Contains(printed, "With"+name+"(") {
			t.Errorf("%s: in the table of options is %v", name, elsewhere[name])
		}
	}
	if want := config.NumField() - len(elsewhere); len(optionTable) != want {
		t.Errorf("the table has %d settings, want %d", len(optionTable), want)
	}
}
