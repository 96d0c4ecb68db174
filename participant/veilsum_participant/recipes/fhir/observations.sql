-- FHIR R4 bulk export, one row an observation that is final, amended or corrected, by LOINC, in the UCUM unit named here. Tables:
-- observation, patient.
WITH items AS (
    SELECT
        regexp_extract(json->>'$.subject.reference', 'Patient/([^/]+)$', 1) AS patient,
        try_cast(substr(json->>'$.effectiveDateTime', 1, 4) AS INTEGER) AS year,
        unnest(list_concat([json], json_extract(json, '$.component[*]'))) AS item
    FROM observation
    WHERE json->>'$.resourceType' = 'Observation' AND json->>'$.status' IN ('final', 'amended', 'corrected')
),
coded AS (
    SELECT
        patient,
        year,
        item->>'$.valueQuantity.code' AS unit,
        try_cast(item->>'$.valueQuantity.value' AS DOUBLE) AS value,
        unnest(json_extract(item, '$.code.coding[*]'))->>'$.code' AS code
    FROM items
),
known AS (
    SELECT
        *,
        CASE
            WHEN code = '4548-4' AND unit = '%' THEN 'hba1c'
            WHEN code = '2160-0' AND unit = 'mg/dL' THEN 'creatinine'
            WHEN code = '8480-6' AND unit = 'mm[Hg]' THEN 'systolic'
            WHEN code = '39156-5' AND unit = 'kg/m2' THEN 'bmi'
        END AS kind
    FROM coded
),
born AS (
    SELECT json->>'$.id' AS patient, any_value(try_cast(substr(json->>'$.birthDate', 1, 4) AS DOUBLE)) AS year
    FROM patient
    WHERE json->>'$.resourceType' = 'Patient'
    GROUP BY ALL
)
SELECT known.patient, known.kind, known.value, known.year - born.year AS age
FROM known
JOIN born ON born.patient = known.patient
WHERE known.kind IS NOT NULL
