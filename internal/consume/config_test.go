package consume

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/pgfrontier/worker/observe"
)

func TestValidateNamesOptionValueAndRange(t *testing.T) {
	for name, test := range map[string]struct {
		option option
		words  []string
	}{
		"batch size":      {func(c *Config) { c.BatchSize = 0 }, []string{"WithBatchSize", "0", "1 to 100000"}},
		"batch pause":     {func(c *Config) { c.BatchPause = -time.Second }, []string{"WithBatchPause", "-1s", "0s to 1h"}},
		"batch timeout":   {func(c *Config) { c.BatchTimeout = time.Microsecond }, []string{"WithBatchTimeout", "1µs", "10ms to 24h"}},
		"failures":        {func(c *Config) { c.MaxConsecutiveFailures = -3 }, []string{"WithMaxConsecutiveFailures", "-3", "1 to"}},
		"poll":            {func(c *Config) { c.PollInterval = 0 }, []string{"WithPollInterval", "0s", "1ms to"}},
		"max poll":        {func(c *Config) { c.MaxPollInterval = time.Millisecond }, []string{"WithMaxPollInterval", "1ms", "1s to 24h"}},
		"strategy":        {func(c *Config) { c.DispatcherStrategy = "push" }, []string{"WithDispatcherStrategy", `"push"`, `"poll" and "notify"`}},
		"notify":          {func(c *Config) { c.DispatcherStrategy = DispatcherStrategyNotify }, []string{"WithNotifyConnectionString"}},
		"channel":         {func(c *Config) { c.NotifyChannel = "a;b" }, []string{"WithNotifyChannel", "a;b"}},
		"interval":        {func(c *Config) { c.DispatcherInterval = 2 * time.Hour }, []string{"WithDispatcherInterval", "2h0m0s", "1h0m0s"}},
		"heartbeat":       {func(c *Config) { c.HeartbeatInterval = 0 }, []string{"WithHeartbeatInterval", "0s"}},
		"timeout":         {func(c *Config) { c.HeartbeatTimeout = 6 * time.Second }, []string{"WithHeartbeatTimeout", "6s", "10s to"}},
		"host":            {func(c *Config) { c.Hostname = "a\x00b" }, []string{"WithHostname", `a\x00b`, "200 bytes"}},
		"rebalance":       {func(c *Config) { c.RebalanceInterval = 0 }, []string{"WithRebalanceInterval", "0s"}},
		"leader":          {func(c *Config) { c.LeaderStrategy = "raft" }, []string{"WithLeaderStrategy", `"raft"`, `"lease"`}},
		"assignment":      {func(c *Config) { c.AssignmentStrategy = "greedy" }, []string{"WithAssignmentStrategy", `"greedy"`, `"round-robin" and "sticky"`}},
		"failure policy":  {func(c *Config) { c.FailurePolicy = "hope" }, []string{"WithFailurePolicy", `"hope"`, `"pause"`}},
		"retry limit":     {func(c *Config) { c.RetryLimit = time.Second }, []string{"WithRetryLimit", "1s", "10s to"}},
		"shutdown":        {func(c *Config) { c.ShutdownTimeout = -1 }, []string{"WithShutdownTimeout", "-1ns", "10ms to"}},
		"stale":           {func(c *Config) { c.StaleGapThreshold = 0 }, []string{"WithStaleGapThreshold", "0s"}},
		"harbor":          {func(c *Config) { c.StaleGapHarborLag = -1 }, []string{"WithStaleGapHarborLag", "-1"}},
		"gap policy":      {func(c *Config) { c.GapPolicy = "hope" }, []string{"WithGapPolicy", `"hope"`}},
		"retention":       {func(c *Config) { c.GapSkipRetention = time.Millisecond }, []string{"WithGapSkipRetention", "1ms", "100ms to"}},
		"open ranges":     {func(c *Config) { c.MaxOpenRanges = 0 }, []string{"WithMaxOpenRanges", "0"}},
		"hostile table":   {func(c *Config) { c.Names.WorkerNodes = "x; drop table y" }, []string{"WithNames: Names.WorkerNodes", "x; drop table y"}},
		"schema":          {func(c *Config) { c.Names.Schema = "a b" }, []string{"WithNames: Names.Schema", "a b"}},
		"too long to add": {func(c *Config) { c.Names.ConsumerCheckpoints = strings.Repeat("c", 60) }, []string{"WithNames: Names.ConsumerCheckpoints", "63"}},
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
	err := error(&observe.ConsumerError{Consumer: "c", Failures: 5, Err: errors.Join(ErrConsecutiveFailures, cause)})
	if !errors.Is(err, ErrConsecutiveFailures) || !errors.Is(err, cause) {
		t.Fatalf("%v does not wrap both", err)
	}
}

// An invalid connection string is refused before anything runs. It is not shown, since it
// may contain a password.
func TestNotifyConnectionStringIsChecked(t *testing.T) {
	for _, conn := range []string{"postgres://app:s3cret%@localhost/app", "postgres://app:s3cret@local host:port/app", "password=s3cret host", "host=localhost password=s3cret sslmode=perhaps"} {
		c := DefaultConfig()
		func(c *Config) { c.DispatcherStrategy = DispatcherStrategyNotify }(&c)
		func(c *Config) { c.NotifyConnectionString = conn }(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "WithNotifyConnectionString") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", conn, err)
		}
	}
}

// Every field of Config that an option sets to a plain value has its line in the table of
// options, which prints it.
func TestOptionTableIsComplete(t *testing.T) {
	elsewhere := map[string]bool{"Observers": true, "Decoder": true, "BatchMiddleware": true, "HandleMiddleware": true, "Loggers": true}
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
