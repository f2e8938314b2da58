{{/* Refuses what the schema cannot: values that contradict each other. Each message says what to set. */}}
{{- define "coder-k8s.validate" -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.operator.leaderElect) -}}
{{- fail (printf "replicas is %d and operator.leaderElect is false, so that all instances would write at the same time: set operator.leaderElect to true, or replicas to 1" (int .Values.replicas)) -}}
{{- end -}}
{{- with .Values.podDisruptionBudget -}}
{{- if and .enabled (ne (toString .maxUnavailable) "") (ne (toString .minAvailable) "") -}}
{{- fail "podDisruptionBudget has both minAvailable and maxUnavailable, which Kubernetes refuses: set one of them to \"\"" -}}
{{- end -}}
{{- end -}}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) -}}
{{- fail "serviceAccount.create is false and serviceAccount.name is empty: set serviceAccount.name to the ServiceAccount of the operator" -}}
{{- end -}}
{{- with .Values.metrics -}}
{{- if and (or .serviceMonitor.enabled .podMonitor.enabled .service.enabled) (not (include "coder-k8s.port" $.Values.operator.metricsAddr)) -}}
{{- fail "operator.metricsAddr is off, so that there is nothing to scrape: set it to \":8080\", or disable metrics.service, metrics.serviceMonitor and metrics.podMonitor" -}}
{{- end -}}
{{- if and .serviceMonitor.enabled .podMonitor.enabled -}}
{{- fail "metrics.serviceMonitor and metrics.podMonitor are both enabled, so that Prometheus would scrape every pod twice: disable one of them" -}}
{{- end -}}
{{- range $value, $file := dict "prometheusRule" "alerts.yaml" "dashboard" "dashboard.json" -}}
{{- if and (index $.Values.metrics $value).enabled (not ($.Files.Get (printf "files/observability/%s" $file))) -}}
{{- fail (printf "metrics.%s is enabled, but this chart was packaged without files/observability/%s: disable it, or package the chart after `cargo xtask generate`" $value $file) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $flags := list (dict "flag" "watch-namespaces" "path" "watchNamespaces") -}}
{{- range .Files.Get "files/operator/flags.yaml" | fromYamlArray -}}
{{- $flags = append $flags (dict "flag" .flag "path" (printf "operator.%s" .value)) -}}
{{- end -}}
{{- range $arg := .Values.extraArgs -}}
{{- range $flags -}}
{{- $flag := printf "--%s" .flag -}}
{{- if or (eq $arg $flag) (hasPrefix (printf "%s=" $flag) $arg) -}}
{{- fail (printf "extraArgs has %s: set %s instead" $flag .path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
