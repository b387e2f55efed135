// Package rules has alerts.yaml, alerts for Prometheus, and dashboard.json, for Grafana: copy them.
package rules
