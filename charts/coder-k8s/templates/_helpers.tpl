{{/* Name in labels and selectors. */}}
{{- define "coder-k8s.name" -}}
{{- default .Chart.Name .Values.nameOverride -}}
{{- end -}}

{{/* Name of all objects, short enough for suffixes such as `-leader-election`. */}}
{{- define "coder-k8s.fullname" -}}
{{- $name := include "coder-k8s.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select the pods. The same as those of `coder-k8s manifests`, so that its Deployment can be adopted:
a selector cannot be changed. */}}
{{- define "coder-k8s.selector" -}}
app.kubernetes.io/name: {{ include "coder-k8s.name" . }}
{{- end -}}

{{/* The chart's labels of every object. Those of the user never replace them. */}}
{{- define "coder-k8s.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" (include "coder-k8s.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") -}}
{{- merge $own .Values.commonLabels | toYaml -}}
{{- end -}}

{{/* `annotations:` of an object, from a list of the root context and maps of which the first decides. */}}
{{- define "coder-k8s.annotations" -}}
{{- $all := dict -}}
{{- range rest . -}}
{{- $all = merge $all . -}}
{{- end -}}
{{- $all = merge $all (first .).Values.commonAnnotations -}}
{{- with $all -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "coder-k8s.serviceAccountName" -}}
{{- default (include "coder-k8s.fullname" .) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "coder-k8s.image" -}}
{{- with .Values.image -}}
{{- .repository }}:{{ default $.Chart.AppVersion .tag }}{{ with .digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The port of a listen address such as `:8081`; empty if there is no listener. */}}
{{- define "coder-k8s.port" -}}
{{- if not (has . (list "off" "0")) -}}
{{- regexFind "[0-9]+$" . -}}
{{- end -}}
{{- end -}}

{{/* Arguments of the operator, as a YAML list: flags whose value is not the operator's own default. */}}
{{- define "coder-k8s.args" -}}
- controller
{{- with .Values.watchNamespaces }}
- --watch-namespaces={{ join "," . }}
{{- end }}
{{- range .Files.Get "files/operator/flags.yaml" | fromYamlArray }}
{{- $value := get $.Values.operator .value }}
{{- $text := ternary (join "," $value) (toString $value) (kindIs "slice" $value) }}
{{- if ne $text .default }}
- {{ printf "--%s=%s" .flag $text | quote }}
{{- end }}
{{- end }}
{{- with .Values.extraArgs }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The rules of a role, indented for `rules:`. Takes the root context and the name of a list in files/operator/rbac.yaml;
rules about the Namespace of a Role name the third argument. */}}
{{- define "coder-k8s.rules" -}}
{{- $rules := get ((first .).Files.Get "files/operator/rbac.yaml" | fromYaml) (index . 1) | toYaml -}}
{{- if gt (len .) 2 }}{{ $rules = $rules | replace "$(NAMESPACE)" (index . 2 | quote) }}{{ end -}}
{{- $rules -}}
{{- end -}}

{{/* The subject of all bindings. */}}
{{- define "coder-k8s.subjects" -}}
- kind: ServiceAccount
  name: {{ include "coder-k8s.serviceAccountName" . }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{/* What a ServiceMonitor and a PodMonitor say of the endpoint. */}}
{{- define "coder-k8s.endpoint" -}}
port: metrics
path: /metrics
{{- /* The labels namespace and name are those of an object, and alerts and dashboard read them. */}}
honorLabels: true
{{- with .interval }}
interval: {{ . }}
{{- end }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with .relabelings }}
relabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
