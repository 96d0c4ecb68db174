{{/* What the schema cannot say: values that only make sense together. */}}
{{- define "veilsum.check" -}}
{{- $coordinator := .Values.coordinator -}}
{{- $participant := .Values.participant -}}
{{- if not (or $coordinator.enabled $participant.enabled .Values.logins.enabled) -}}
{{- fail "Nothing to install: set coordinator.enabled, participant.enabled or logins.enabled." -}}
{{- end -}}
{{- if and .Values.logins.enabled (or $coordinator.enabled $participant.enabled) -}}
{{- fail "logins.enabled: install the authority's service as a release of its own, away from coordinator and participants." -}}
{{- end -}}
{{- if and .Values.logins.enabled .Values.networkPolicy.enabled (not .Values.logins.networkPolicy.providerTo) -}}
{{- fail "logins.networkPolicy.providerTo: say where the identity provider is, for example [{ipBlock: {cidr: 203.0.113.20/32}}]." -}}
{{- end -}}
{{- range $name, $part := dict "coordinator" $coordinator "participant" $participant -}}
{{- if and $part.enabled $part.metrics.serviceMonitor.enabled (not $part.metrics.enabled) -}}
{{- fail (printf "%s.metrics.serviceMonitor.enabled needs %s.metrics.enabled: on loopback there is nothing to scrape." $name $name) -}}
{{- end -}}
{{- end -}}
{{- if .Values.postgresql.enabled -}}
{{- if not $coordinator.enabled }}{{ fail "postgresql.enabled needs coordinator.enabled: nobody else uses it." }}{{ end -}}
{{- if not $coordinator.database.existingSecret -}}
{{- fail "coordinator.database.existingSecret: name a Secret with the keys of postgresql.passwordKey and coordinator.database.urlKey." -}}
{{- end -}}
{{- else if and $coordinator.enabled $coordinator.database.existingSecret .Values.networkPolicy.enabled (not $coordinator.networkPolicy.databaseTo) -}}
{{- fail "coordinator.networkPolicy.databaseTo: say where PostgreSQL listens, for example [{ipBlock: {cidr: 10.0.0.5/32}}]; without it the coordinator cannot reach it." -}}
{{- end -}}
{{- if and $coordinator.database.ca.existingSecret (not $coordinator.database.existingSecret) -}}
{{- fail "coordinator.database.ca needs coordinator.database.existingSecret." -}}
{{- end -}}
{{- if $participant.enabled -}}
{{- $_ := required "participant.name: the site's certified name, as its certificate has it" $participant.name -}}
{{- $directory := $participant.directory -}}
{{- if and $directory.use (not (or $directory.existingSecret $directory.existingConfigMap)) -}}
{{- fail "participant.directory.use: name the Secret or ConfigMap that holds the directory." -}}
{{- end -}}
{{- if and $directory.use (dig "policy" "trusted" dict $participant.config) -}}
{{- fail "participant.directory.use: the directory takes the place of config.policy.trusted; remove one of them." -}}
{{- end -}}
{{- if eq (default "" $participant.config.proxy) "environment" -}}
{{- fail "participant.config.proxy: name the proxy as host:port; the pod's environment names none." -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not $participant.networkPolicy.coordinatorTo) -}}
{{- fail "participant.networkPolicy.coordinatorTo: say where the coordinator (or config.proxy) is, for example [{ipBlock: {cidr: 203.0.113.10/32}}]; a network policy takes no names." -}}
{{- end -}}
{{- end -}}
{{- end -}}
