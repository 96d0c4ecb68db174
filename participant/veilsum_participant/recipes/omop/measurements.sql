-- OMOP CDM 5.4: one row a measurement, in the units named here; a measurement in another unit is left out:
--   hba1c: 3004410 in % (8554), hemoglobin A1c in blood
--   creatinine: 3016723 in mg/dL (8840), creatinine in serum or plasma
--   systolic: 3004249 in mmHg (8876), systolic blood pressure
--   bmi: 3038553 in kg/m2 (9531), body mass index
WITH @persons,
@measures
SELECT
    measures.person_id,
    CASE measures.measurement_concept_id
        WHEN 3004410 THEN 'hba1c'
        WHEN 3016723 THEN 'creatinine'
        WHEN 3004249 THEN 'systolic'
        WHEN 3038553 THEN 'bmi'
    END AS kind,
    measures.value_as_number AS value,
    CAST(EXTRACT(YEAR FROM measures.measurement_date) AS float8) - persons.year_of_birth AS age
FROM measures
JOIN persons ON persons.person_id = measures.person_id
WHERE (measures.measurement_concept_id = 3004410 AND measures.unit_concept_id = 8554)
   OR (measures.measurement_concept_id = 3016723 AND measures.unit_concept_id = 8840)
   OR (measures.measurement_concept_id = 3004249 AND measures.unit_concept_id = 8876)
   OR (measures.measurement_concept_id = 3038553 AND measures.unit_concept_id = 9531)
