{{- /* What the names of all objects begin with: short enough for a StatefulSet's name with a class (52). */ -}}
{{- define "stratafl.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 30 | trimSuffix "-" -}}
{{- end -}}

{{- /* The labels by which pods of a component are found. Takes root, component and, of agents, class. */ -}}
{{- define "stratafl.selector" -}}
app.kubernetes.io/name: stratafl
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .class }}
stratafl/class: {{ . }}
{{- end }}
{{- end -}}

{{- define "stratafl.labels" -}}
{{ include "stratafl.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{- define "stratafl.tokens" -}}
{{- default (printf "%s-tokens" (include "stratafl.fullname" .)) .Values.tokens.secret -}}
{{- end -}}

{{- define "stratafl.redisUrl" -}}
{{- default (printf "redis://%s-redis:6379/0" (include "stratafl.fullname" .)) .Values.redis.url -}}
{{- end -}}

{{- define "stratafl.cloudUrl" -}}
http://{{ include "stratafl.fullname" . }}-cloud:8000
{{- end -}}

{{- /* A class of agents with its defaults, as YAML. Takes root and agent. */ -}}
{{- define "stratafl.agent" -}}
{{- $found := deepCopy .root.Values.agentDefaults -}}
{{- range $key, $value := .agent }}{{ $_ := set $found $key $value }}{{ end -}}
{{- toYaml $found -}}
{{- end -}}

{{- /* The names by which users reach the cloud, for its certificate. */ -}}
{{- define "stratafl.hosts" -}}
{{- $name := include "stratafl.fullname" . -}}
{{- $api := printf "%s-api" $name -}}
{{- $own := list "localhost" "127.0.0.1" "::1" "cloud" (printf "%s-cloud" $name) $api (printf "%s.%s" $api .Release.Namespace) (printf "%s.%s.svc" $api .Release.Namespace) -}}
{{- concat $own .Values.ingress.hosts .Values.secure.hosts | uniq | join "," -}}
{{- end -}}

{{- /* Environment variables of a map, in order; those of the user replace ours. Takes ours and users. */ -}}
{{- define "stratafl.env" -}}
{{- range $name, $value := merge (deepCopy .users) .ours }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- end -}}

{{- /* Settings of all tiers and the fleet, as YAML. Takes root and, in secure mode, join. */ -}}
{{- define "stratafl.settings" -}}
STRATA_LOG_LEVEL: {{ .root.Values.logs.level | quote }}
STRATA_LOG_FORMAT: {{ .root.Values.logs.format | quote }}
STRATA_PLUGINS: {{ join "," .root.Values.plugins.packages | quote }}
{{- if .root.Values.secure.enabled }}
STRATA_SECURE: "1"
{{- if .join }}
STRATA_JOIN_TOKEN_FILE: /run/secrets/stratafl/join-token
{{- end }}
{{- else }}
STRATA_TIER_TOKEN_FILE: /run/secrets/stratafl/tier-token
{{- end }}
{{- if ne .component "fleet" }}
STRATA_METRICS_TOKEN_FILE: /run/secrets/stratafl/metrics-token
{{- end }}
{{- if eq .component "cloud" }}
STRATA_API_TOKEN_FILE: /run/secrets/stratafl/api-token
{{- end }}
{{- end -}}

{{- /* The volume of the tokens that a component sees, and no others. Takes root, component, join. */ -}}
{{- define "stratafl.secrets" -}}
{{- $keys := list -}}
{{- if ne .component "fleet" }}{{ $keys = append $keys "metrics-token" }}{{ end -}}
{{- if eq .component "cloud" }}{{ $keys = append $keys "api-token" }}{{ end -}}
{{- if not .root.Values.secure.enabled }}{{ $keys = append $keys "tier-token" }}{{ end -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- if $keys }}
      - secret:
          name: {{ include "stratafl.tokens" .root }}
          items:
            {{- range $keys }}
            - {key: {{ . }}, path: {{ . }}}
            {{- end }}
      {{- end }}
      {{- if and .root.Values.secure.enabled .join }}
      - secret:
          name: {{ .root.Values.secure.join.secret }}
          items:
            - {key: {{ .join }}, path: join-token}
      {{- end }}
{{- end -}}

{{- define "stratafl.image" -}}
{{ .repository }}:{{ default .version .tag }}
{{- end -}}

{{- /* Of every pod. Takes uid and gid. */ -}}
{{- define "stratafl.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .uid }}
  runAsGroup: {{ .gid }}
  fsGroup: {{ .gid }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "stratafl.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "stratafl.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- end -}}

{{- /* A claim for /data, of a StatefulSet. Takes root and storage. */ -}}
{{- define "stratafl.claim" -}}
volumeClaimTemplates:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata: {name: data}
    spec:
      accessModes: [ReadWriteOnce]
      {{- with .root.Values.storageClass }}
      storageClassName: {{ . }}
      {{- end }}
      resources: {requests: {storage: {{ .storage | quote }}}}
{{- end -}}

{{- define "stratafl.budget" -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "stratafl.fullname" .root }}-{{ default .component .class }}
  labels: {{- include "stratafl.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .maxUnavailable }}
  selector:
    matchLabels: {{- include "stratafl.selector" . | nindent 6 }}
{{- end -}}

{{- /* A headless Service: names resolve to the addresses of pods, since every tier is called where it registered from. */ -}}
{{- define "stratafl.headless" -}}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ include "stratafl.fullname" .root }}-{{ .name }}
  labels:
    {{- include "stratafl.labels" . | nindent 4 }}
    {{- if .metrics }}
    stratafl/metrics: "true"
    {{- end }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "stratafl.selector" . | nindent 4 }}
  ports:
    - {name: {{ .portName }}, port: {{ .port }}, targetPort: {{ .portName }}}
{{- end -}}
