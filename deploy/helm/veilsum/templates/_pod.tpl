{{/* Every container: the restricted profile of the pod security standards, and a root that cannot be written to. */}}
{{- define "veilsum.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Takes (dict "user" user). OnRootMismatch: files that were made with mode 0600 keep it when the volume is mounted again. */}}
{{- define "veilsum.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .user.id }}
runAsGroup: {{ .user.group }}
fsGroup: {{ .user.group }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* A private file of a Secret: mode 0440, owner root, group the process's, since Kubernetes gives a Secret no other owner. */}}
{{- define "veilsum.secretVolume" -}}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    items:
      {{- range $path, $key := .items }}
      - {key: {{ $key }}, path: {{ $path }}}
      {{- end }}
{{- end -}}

{{/* A public file of a Secret or a ConfigMap. Takes (dict "name" volume "path" file "from" values "key" of the values). */}}
{{- define "veilsum.fileVolume" -}}
{{- if and .from.existingSecret .from.existingConfigMap -}}
{{- fail (printf "%s: name a Secret or a ConfigMap, not both." .key) -}}
{{- end -}}
{{- $items := list (dict "key" .from.key "path" .path) -}}
{{- $source := dict "configMap" (dict "name" .from.existingConfigMap "items" $items) -}}
{{- if .from.existingSecret -}}
{{- $source = dict "secret" (dict "secretName" .from.existingSecret "items" $items) -}}
{{- end -}}
{{- toYaml (list (merge (dict "name" .name) $source)) -}}
{{- end -}}

{{/* Volumes that both roles have. Takes (dict "root" $ "part" part). */}}
{{- define "veilsum.volumes" -}}
{{- $part := index .root.Values .part -}}
{{- $identity := required (printf "%s.identity.existingSecret: name a Secret with key.pem, certificate.pem and authority.pem" .part) $part.identity.existingSecret -}}
- name: config
  configMap: {name: {{ include "veilsum.name" . }}}
- name: scratch
  emptyDir: {sizeLimit: 2Gi}
{{- $transport := dig "transport" "existingSecret" "" $part }}
{{- if $transport }}
- name: identity
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ $identity }}
          items:
            - {key: key.pem, path: key.pem}
            - {key: certificate.pem, path: certificate.pem}
            - {key: authority.pem, path: authority.pem}
      - secret:
          name: {{ $transport }}
          items:
            - {key: key.pem, path: transport/key.pem}
            - {key: certificate.pem, path: transport/certificate.pem}
            - {key: authority.pem, path: transport/authority.pem}
{{- else }}
{{ include "veilsum.secretVolume" (dict "name" "identity" "secret" $identity "items" (dict "key.pem" "key.pem" "certificate.pem" "certificate.pem" "authority.pem" "authority.pem")) }}
{{- end }}
{{- if $part.metrics.enabled }}
{{- $metrics := $part.metrics }}
- name: metrics
  projected:
    defaultMode: 0440
    sources:
      - secret:
          name: {{ required (printf "%s.metrics.tls.existingSecret: name a Secret with certificate and key; the endpoint serves TLS only" .part) $metrics.tls.existingSecret }}
          items:
            - {key: {{ $metrics.tls.certificateKey }}, path: tls.crt}
            - {key: {{ $metrics.tls.keyKey }}, path: tls.key}
      - secret:
          name: {{ required (printf "%s.metrics.token.existingSecret: name a Secret with the token that Prometheus shows" .part) $metrics.token.existingSecret }}
          items:
            - {key: {{ $metrics.token.key }}, path: token}
{{- end }}
{{- end -}}

{{- define "veilsum.volumeMounts" -}}
{{- $part := index .root.Values .part -}}
- {name: config, mountPath: /etc/veilsum/config, readOnly: true}
- {name: identity, mountPath: /etc/veilsum/identity, readOnly: true}
- {name: state, mountPath: /var/lib/veilsum}
- {name: scratch, mountPath: /tmp}
{{- if $part.metrics.enabled }}
- {name: metrics, mountPath: /etc/veilsum/metrics, readOnly: true}
{{- end }}
{{- end -}}

{{/* Health over the metrics endpoint. On loopback only the command inside the pod reaches it; it asks whether the process is
     ready, not whether it lives, so nothing restarts a participant whose coordinator is away. */}}
{{- define "veilsum.probes" -}}
{{- $part := index .root.Values .part -}}
{{- if $part.metrics.enabled -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics, scheme: HTTPS}
  periodSeconds: 5
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: metrics, scheme: HTTPS}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics, scheme: HTTPS}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- else -}}
readinessProbe:
  exec: {command: [veilsum, {{ .part }}, health, --config, /etc/veilsum/config/{{ .part }}.toml]}
  initialDelaySeconds: 10
  periodSeconds: 60
  timeoutSeconds: 20
  failureThreshold: 3
{{- end }}
{{- end -}}

{{/* A volume for each replica, of which there is one; it outlives the release. Takes (dict "state" state). */}}
{{- define "veilsum.stateClaim" -}}
- metadata:
    name: state
    {{- with .state.annotations }}
    annotations: {{ toYaml . | nindent 6 }}
    {{- end }}
  spec:
    accessModes: {{ toJson .state.accessModes }}
    {{- with .state.storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .state.size }}}}
{{- end -}}

{{/* The pod of a coordinator or a participant. Takes root, part, toml (its configuration), ports, env, volumes, mounts. */}}
{{- define "veilsum.pod" -}}
{{- $part := index .root.Values .part -}}
{{- $names := dict "root" .root "part" .part -}}
metadata:
  labels:
    {{- include "veilsum.labels" $names | nindent 4 }}
    {{- with $part.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    checksum/config: {{ .toml | sha256sum }}
    {{- with $part.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "veilsum.fullname" .root }}
  automountServiceAccountToken: false
  enableServiceLinks: false # they would fill the environment with names that begin like veilsum's own
  terminationGracePeriodSeconds: {{ $part.terminationGracePeriodSeconds }}
  securityContext: {{- include "veilsum.podSecurity" .root.Values | nindent 4 }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $part.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $part.topologySpreadConstraints }}
  topologySpreadConstraints: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: {{ .part }}
      image: {{ include "veilsum.image" (dict "root" .root "image" $part.image "key" (printf "%s.image" .part)) }}
      imagePullPolicy: {{ $part.image.pullPolicy }}
      command: [veilsum, {{ .part }}, start, --config, /etc/veilsum/config/{{ .part }}.toml]
      env:
        - {name: HOME, value: /tmp}
        - {name: MPLCONFIGDIR, value: /tmp/matplotlib}
        {{- with .env }}
        {{- . | nindent 8 }}
        {{- end }}
      {{- with .ports }}
      ports: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "veilsum.probes" $names | nindent 6 }}
      resources: {{- toYaml $part.resources | nindent 8 }}
      securityContext: {{- include "veilsum.containerSecurity" . | nindent 8 }}
      volumeMounts:
        {{- include "veilsum.volumeMounts" $names | nindent 8 }}
        {{- with .mounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    {{- include "veilsum.volumes" $names | nindent 4 }}
    {{- with .volumes }}
    {{- . | nindent 4 }}
    {{- end }}
{{- end -}}
