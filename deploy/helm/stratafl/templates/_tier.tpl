{{- /*
A StatefulSet of a tier. Takes root, component, class (of agents), service, module, port, replicas, ready (path), env (a
map), join (class of its join token), and values (those of the tier).
*/ -}}
{{- define "stratafl.tier" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{- $name := printf "%s-%s" (include "stratafl.fullname" .root) (default .component .class) -}}
{{- $prefix := upper .component -}}
{{- $scheme := ternary "HTTPS" "HTTP" .root.Values.secure.enabled -}}
{{- $isCloud := eq .component "cloud" -}}
{{- $external := ternary .root.Values.redis.urlSecret "" (ne .component "agent") -}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  labels: {{- include "stratafl.labels" . | nindent 4 }}
spec:
  {{- /* What the fleet has scaled stays as it is. */}}
  {{- $live := dict }}
  {{- if and .root.Values.fleet.enabled (not $isCloud) }}
  {{- $live = lookup "apps/v1" "StatefulSet" .root.Release.Namespace $name }}
  {{- end }}
  replicas: {{ int (dig "spec" "replicas" .replicas $live) }}
  serviceName: {{ include "stratafl.fullname" .root }}-{{ .service }}
  podManagementPolicy: Parallel
  selector:
    matchLabels: {{- include "stratafl.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "stratafl.selector" . | nindent 8 }}
    spec:
      {{- include "stratafl.podSecurity" (dict "uid" 10001 "gid" 10001) | nindent 6 }}
      terminationGracePeriodSeconds: 30
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets: {{ toJson . }}
      {{- end }}
      {{- include "stratafl.scheduling" $values | nindent 6 }}
      {{- if eq .component "edge" }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: {{ $values.spread }}
          labelSelector:
            matchLabels: {{- include "stratafl.selector" . | nindent 14 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "stratafl.image" (merge (dict "version" .root.Chart.AppVersion) .root.Values.image) }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          command: [python, -m, {{ .module }}]
          env:
            {{- if not $isCloud }}
            - name: {{ $prefix }}_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            {{- end }}
            {{- if $external }}
            - name: {{ $prefix }}_REDIS_URL
              valueFrom: {secretKeyRef: {name: {{ $external }}, key: url}}
            {{- end }}
            {{- if and $isCloud .root.Values.mlflow.secret }}
            {{- range list "token" "username" "password" }}
            - name: MLFLOW_TRACKING_{{ upper . }}
              valueFrom: {secretKeyRef: {name: {{ $root.Values.mlflow.secret }}, key: {{ . }}, optional: true}}
            {{- end }}
            {{- end }}
            {{- $settings := fromYaml (include "stratafl.settings" .) }}
            {{- include "stratafl.env" (dict "users" $values.env "ours" (merge .env $settings)) | nindent 12 }}
          ports:
            - {name: http, containerPort: {{ .port }}}
          {{- /* An agent that dials out has no port that could be asked. */}}
          {{- if not (and (eq .component "agent") (eq (toString $values.env.AGENT_CONNECT) "up")) }}
          startupProbe:
            httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
            periodSeconds: 3
            timeoutSeconds: 5
            failureThreshold: 100
          livenessProbe:
            httpGet: {path: /healthz, port: http, scheme: {{ $scheme }}}
            periodSeconds: 15
            timeoutSeconds: 5
            failureThreshold: 4
          readinessProbe:
            httpGet: {path: {{ .ready }}, port: http, scheme: {{ $scheme }}}
            periodSeconds: 5
            timeoutSeconds: 5
          {{- end }}
          {{- $resources := deepCopy $values.resources }}
          {{- if $values.gpu }}
          {{- $limits := set (default dict $resources.limits) "nvidia.com/gpu" (int $values.gpu) }}
          {{- $_ := set $resources "limits" $limits }}
          {{- end }}
          resources: {{ toJson $resources }}
          {{- include "stratafl.containerSecurity" . | nindent 10 }}
          volumeMounts:
            - {name: data, mountPath: /data}
            - {name: tmp, mountPath: /tmp}
            - {name: secrets, mountPath: /run/secrets/stratafl, readOnly: true}
            {{- if and $isCloud .root.Values.secure.enabled }}
            - {name: authority, mountPath: /run/secrets/authority, readOnly: true}
            {{- end }}
            {{- if .root.Values.data.claim }}
            - {name: datasets, mountPath: /datasets, readOnly: true}
            {{- end }}
            {{- if .root.Values.plugins.claim }}
            - {name: plugins, mountPath: /plugins, readOnly: true}
            {{- else if .root.Values.plugins.configMap }}
            - {name: plugins, mountPath: /plugins/{{ first .root.Values.plugins.packages }}, readOnly: true}
            {{- end }}
      volumes:
        {{- include "stratafl.secrets" . | nindent 8 }}
        - {name: tmp, emptyDir: {}}
        {{- if not $values.storage }}
        - {name: data, emptyDir: {}}
        {{- end }}
        {{- if and $isCloud .root.Values.secure.enabled }}
        {{- with .root.Values.secure }}
        - name: authority
          projected:
            defaultMode: 0440
            sources:
              - secret:
                  name: {{ .authority.secret }}
                  items:
                    - {key: {{ .authority.key }}, path: authority-key.pem}
                    - {key: {{ .authority.certificate }}, path: authority.pem}
              - secret:
                  name: {{ .join.secret }}
                  items:
                    - {key: join-secret, path: join-secret}
        {{- end }}
        {{- end }}
        {{- with .root.Values.data.claim }}
        - name: datasets
          persistentVolumeClaim: {claimName: {{ . }}, readOnly: true}
        {{- end }}
        {{- if .root.Values.plugins.claim }}
        - name: plugins
          persistentVolumeClaim: {claimName: {{ .root.Values.plugins.claim }}, readOnly: true}
        {{- else if .root.Values.plugins.configMap }}
        - name: plugins
          configMap: {name: {{ .root.Values.plugins.configMap }}}
        {{- end }}
  {{- if $values.storage }}
  {{- include "stratafl.claim" (dict "root" .root "storage" $values.storage) | nindent 2 }}
  {{- end }}
{{ include "stratafl.budget" (merge (dict "maxUnavailable" $values.maxUnavailable) .) }}
{{- end -}}
