-- FHIR R4: one row an encounter that was neither cancelled nor entered in error, nor is only planned, nor is part of another of its kind.
-- Tables, each with the column json, a resource or a Bundle a row: encounter, patient.
-- What is of another type is left aside, so they may all be the same files. Of what a patient has several times under one id the last
-- version counts, by meta.lastUpdated, then meta.versionId. A subject is a Patient's id, whatever stands before it and its version
-- after it, or a URN; who is named by an identifier alone, or contained in the resource, is nobody. misses.sql counts what is left
-- aside.
WITH versions AS (
    SELECT
        coalesce(resource.id, url) AS patient,
        url,
        try_cast(resource.meta.lastUpdated AS TIMESTAMPTZ) AS changed,
        try_cast(resource.meta.versionId AS BIGINT) AS version,
        resource
    FROM (
        SELECT
            url,
            json_transform(json, '{
                "id": "VARCHAR", "meta": {"lastUpdated": "VARCHAR", "versionId": "VARCHAR"},
                "gender": "VARCHAR", "birthDate": "VARCHAR", "deceasedBoolean": "VARCHAR", "deceasedDateTime": "VARCHAR",
                "link": [{"type": "VARCHAR"}]
            }') AS resource
        FROM (
            SELECT if(bundled, item->>'$.fullUrl', NULL) AS url, if(bundled, item->'$.resource', item) AS json
            FROM (
                SELECT type, type = 'Bundle' AS bundled, unnest(if(type = 'Bundle', json_extract(json, '$.entry[*]'), [json])) AS item
                FROM (SELECT json, json->>'$.resourceType' AS type FROM patient)
            )
            WHERE if(bundled, item->>'$.resource.resourceType', type) = 'Patient'
        )
    )
),
persons AS (
    -- The last version of each patient, unless another patient has replaced it.
    SELECT patient, url, resource
    FROM (
        SELECT
            *,
            row_number() OVER (PARTITION BY patient ORDER BY changed DESC NULLS LAST, version DESC NULLS LAST, resource DESC) AS place
        FROM versions
        WHERE patient IS NOT NULL
    )
    WHERE place = 1 AND NOT coalesce(list_contains(list_transform(resource.link, lambda link: link.type), 'replaced-by'), false)
),
names AS (
    -- What a reference calls a patient: its id, or a URN of its id or of its place in a Bundle.
    SELECT patient AS name, patient FROM persons
    UNION
    SELECT 'urn:' || lower(patient), patient FROM persons
    UNION
    SELECT 'urn:' || lower(regexp_extract(url, '(?i)^urn:[a-z]+:(.+)$', 1)), patient FROM persons WHERE starts_with(lower(url), 'urn:')
),
stay_read AS (
    SELECT
        CASE
            WHEN regexp_matches(resource.subject.reference, '(?i)^urn:(uuid|oid):')
                THEN 'urn:' || lower(regexp_extract(resource.subject.reference, '(?i)^urn:[a-z]+:(.+)$', 1))
            ELSE nullif(regexp_extract(resource.subject.reference, '(?:^|/)Patient/([^/?#|]+)(?:/_history/[^/]+)?/?$', 1), '')
        END AS name,
        coalesce(resource.id, url) AS id,
        CASE
            WHEN regexp_matches(resource.partOf.reference, '(?i)^urn:(uuid|oid):')
                THEN 'urn:' || lower(regexp_extract(resource.partOf.reference, '(?i)^urn:[a-z]+:(.+)$', 1))
            ELSE nullif(regexp_extract(resource.partOf.reference, '(?:^|/)Encounter/([^/?#|]+)(?:/_history/[^/]+)?/?$', 1), '')
        END AS whole,
        try_cast(resource.meta.lastUpdated AS TIMESTAMPTZ) AS changed,
        try_cast(resource.meta.versionId AS BIGINT) AS version,
        resource
    FROM (
        SELECT
            url,
            json_transform(json, '{
                "id": "VARCHAR", "meta": {"lastUpdated": "VARCHAR", "versionId": "VARCHAR"},
                "status": "VARCHAR", "class": {"code": "VARCHAR"}, "period": {"start": "VARCHAR", "end": "VARCHAR"},
                "partOf": {"reference": "VARCHAR"}, "subject": {"reference": "VARCHAR"}
            }') AS resource
        FROM (
            SELECT if(bundled, item->>'$.fullUrl', NULL) AS url, if(bundled, item->'$.resource', item) AS json
            FROM (
                SELECT type, type = 'Bundle' AS bundled, unnest(if(type = 'Bundle', json_extract(json, '$.entry[*]'), [json])) AS item
                FROM (SELECT json, json->>'$.resourceType' AS type FROM encounter)
            )
            WHERE if(bundled, item->>'$.resource.resourceType', type) = 'Encounter'
        )
    )
),
stay AS (
    -- Of each patient's, the last version of each; what has no id counts by itself.
    SELECT patient, id, whole, resource
    FROM (
        SELECT
            names.patient,
            stay_read.id,
            stay_read.whole,
            stay_read.resource,
            row_number() OVER (PARTITION BY names.patient, stay_read.id ORDER BY changed DESC NULLS LAST, version DESC NULLS LAST, stay_read.resource DESC) AS place
        FROM stay_read
        JOIN names ON names.name = stay_read.name
    )
    WHERE id IS NULL OR place = 1
),
counted AS (
    SELECT
        patient,
        id,
        whole,
        CASE resource.class.code
            WHEN 'IMP' THEN 'inpatient'
            WHEN 'ACUTE' THEN 'inpatient'
            WHEN 'NONAC' THEN 'inpatient'
            WHEN 'AMB' THEN 'outpatient'
            WHEN 'EMER' THEN 'emergency'
        END AS kind,
        try_cast(substr(resource.period.start, 1, 10) AS DATE) AS begins,
        try_cast(substr(resource.period."end", 1, 10) AS DATE) AS ends
    FROM stay
    WHERE coalesce(resource.status, '') NOT IN ('planned', 'cancelled', 'entered-in-error')
),
visits AS (
    -- What is part of another of its kind, such as the days on one ward of a stay, is not counted beside it.
    SELECT *
    FROM counted
    WHERE NOT EXISTS (
        SELECT 1
        FROM (SELECT patient, kind, unnest([id, 'urn:' || lower(regexp_replace(id, '(?i)^urn:[a-z]+:', ''))]) AS name FROM counted) AS wholes
        WHERE wholes.patient = counted.patient AND wholes.kind = counted.kind AND wholes.name = counted.whole
    )
)
SELECT
    visits.patient,
    visits.kind,
    CASE
        WHEN visits.ends >= visits.begins
            THEN CAST(EXTRACT(EPOCH FROM visits.ends) AS DOUBLE) / 86400 - CAST(EXTRACT(EPOCH FROM visits.begins) AS DOUBLE) / 86400
    END AS days,
    EXTRACT(YEAR FROM visits.begins) - try_cast(substr(persons.resource.birthDate, 1, 4) AS DOUBLE) AS age
FROM visits
JOIN persons ON persons.patient = visits.patient
